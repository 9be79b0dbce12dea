# misconception: dealt-out
def slowest(costs, balance):
    worst, layer = 0, 0
    for count in balance:
        time = 0
        for _ in range(count):
            time += costs[layer]
            layer += 1
        worst = max(worst, time)
    return worst


import heapq


def balance(costs, stages):
    heap = [(0.0, stage) for stage in range(stages)]
    counts = [0] * stages
    for cost in sorted(costs, reverse=True):
        load, stage = heapq.heappop(heap)
        counts[stage] += 1
        heapq.heappush(heap, (load + cost, stage))
    return counts
