# misconception: filled-up
def slowest(costs, balance):
    worst, layer = 0, 0
    for count in balance:
        time = 0
        for _ in range(count):
            time += costs[layer]
            layer += 1
        worst = max(worst, time)
    return worst


def balance(costs, stages):
    counts, start = [], 0
    while len(counts) < stages - 1:
        left = stages - len(counts)
        goal = sum(costs[start:]) / left
        end = start + 1
        while end < len(costs) - (left - 1) and sum(costs[start:end + 1]) <= goal:
            end += 1
        counts.append(end - start)
        start = end
    counts.append(len(costs) - start)
    return counts
