# misconception: too-many-steps
def slowest(costs, balance):
    worst, layer = 0, 0
    for count in balance:
        time = 0
        for _ in range(count):
            time += costs[layer]
            layer += 1
        worst = max(worst, time)
    return worst


from itertools import combinations


def balance(costs, stages):
    best = None
    for cuts in combinations(range(1, len(costs)), stages - 1):
        ends = [0, *cuts, len(costs)]
        counts = [b - a for a, b in zip(ends, ends[1:])]
        time = slowest(costs, counts)
        if best is None or time < best[0]:
            best = time, counts
    return best[1]
