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
    target = sum(costs) / stages
    counts, count, taken = [], 0, 0.0
    for layer, cost in enumerate(costs):
        count += 1
        taken += cost
        stages_left = stages - len(counts) - 1
        layers_left = len(costs) - layer - 1
        if stages_left and (taken >= target or layers_left == stages_left):
            counts.append(count)
            count, taken = 0, 0.0
    counts.append(count)
    return counts
