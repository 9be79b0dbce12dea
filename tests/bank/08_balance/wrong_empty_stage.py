# misconception: empty-stage
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
    target = sum(costs) / stages
    counts, taken = [0], 0
    for cost in costs:
        if taken + cost > target and len(counts) < stages:
            counts.append(0)
            taken = 0
        counts[-1] += 1
        taken += cost
    return counts + [0] * (stages - len(counts))
