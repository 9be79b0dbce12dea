# misconception: fastest-stage
def slowest(costs, balance):
    worst, layer = 0, 0
    for count in balance:
        time = 0
        for _ in range(count):
            time += costs[layer]
            layer += 1
        worst = max(worst, time)
    return worst


import functools


def balance(costs, stages):
    layers = len(costs)

    @functools.cache
    def best(start, left):
        if left == 1:
            return sum(costs[start:]), (layers - start,)
        found = None
        for count in range(1, layers - start - left + 2):
            rest, counts = best(start + count, left - 1)
            time = min(sum(costs[start:start + count]), rest)
            if found is None or time > found[0]:
                found = time, (count, *counts)
        return found

    return list(best(0, stages)[1])
