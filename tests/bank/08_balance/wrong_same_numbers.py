# misconception: same-numbers
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
    size, rest = divmod(len(costs), stages)
    return [size + 1 if stage < rest else size for stage in range(stages)]
