# misconception: same-start
def slowest(costs, balance):
    return max(sum(costs[:count]) for count in balance)


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
            time = max(sum(costs[start:start + count]), rest)
            if found is None or time < found[0]:
                found = time, (count, *counts)
        return found

    return list(best(0, stages)[1])
