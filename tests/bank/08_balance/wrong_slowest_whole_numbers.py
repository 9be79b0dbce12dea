# misconception: whole-numbers
def slowest(costs, balance):
    start, times = 0, []
    for count in balance:
        times.append(int(sum(costs[start:start + count])))
        start += count
    return max(times)


def fill(costs, stages, limit):
    """Layers a stage if no stage may exceed the limit, or None if that is impossible."""
    counts, count, taken = [], 0, 0
    for layer, cost in enumerate(costs):
        must_leave = len(costs) - layer
        if count and (taken + cost > limit or must_leave <= stages - len(counts) - 1):
            counts.append(count)
            count, taken = 0, 0
        if cost > limit:
            return None
        count += 1
        taken += cost
    counts.append(count)
    return counts if len(counts) == stages else None


def balance(costs, stages):
    low, high = 0.0, float(sum(costs)) + 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if fill(costs, stages, middle):
            high = middle
        else:
            low = middle
    return fill(costs, stages, high)
