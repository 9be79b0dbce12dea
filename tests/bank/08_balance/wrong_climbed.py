# misconception: climbed
def slowest(costs, balance):
    remaining = iter(costs)
    return max(sum(next(remaining) for _ in range(count)) for count in balance)


def balance(costs, stages):
    least, more = divmod(len(costs), stages)
    counts = [least + 1] * more + [least] * (stages - more)
    moved = True
    while moved:
        moved = False
        for source in range(stages):
            for target in source - 1, source + 1:
                if 0 <= target < stages and counts[source] > 1:
                    trial = counts[:]
                    trial[source] -= 1
                    trial[target] += 1
                    if slowest(costs, trial) < slowest(costs, counts):
                        counts, moved = trial, True
    return counts
