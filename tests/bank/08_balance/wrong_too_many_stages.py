# misconception: too-many-stages
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
    counts, count, taken = [], 0, 0
    for cost in costs:
        if count and taken + cost > target:
            counts.append(count)
            count, taken = 0, 0
        count += 1
        taken += cost
    counts.append(count)
    while len(counts) < stages:
        widest = counts.index(max(counts))
        counts[widest:widest + 1] = [1, counts[widest] - 1]
    return counts
