# misconception: whole-numbers
def slowest(costs, balance):
    remaining = iter(costs)
    return max(sum(next(remaining) for _ in range(count)) for count in balance)


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
    low, high = 0, int(sum(costs)) + 1
    while low < high:
        middle = (low + high) // 2
        if fill(costs, stages, middle):
            high = middle
        else:
            low = middle + 1
    return fill(costs, stages, high)
