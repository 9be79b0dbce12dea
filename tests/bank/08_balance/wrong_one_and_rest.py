# misconception: one-and-rest
def slowest(costs, balance):
    remaining = iter(costs)
    return max(sum(next(remaining) for _ in range(count)) for count in balance)


def balance(costs, stages):
    layers = len(costs)
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    slow = [[float('inf')] * (layers + 1) for _ in range(stages + 1)]
    cut = [[0] * (layers + 1) for _ in range(stages + 1)]
    slow[0][0] = 0
    for n in range(1, stages + 1):
        for end in range(n, layers + 1):
            for start in range(n - 1, end):
                time = slow[n - 1][start] + sums[end] - sums[start]
                if time < slow[n][end]:
                    slow[n][end], cut[n][end] = time, start
    counts, end = [], layers
    for n in range(stages, 0, -1):
        counts.append(end - cut[n][end])
        end = cut[n][end]
    return counts[::-1]
