import numpy as np


def slowest(costs, balance):
    ends = np.cumsum(balance)
    sums = np.concatenate([[0], np.cumsum(costs)])
    return np.diff(sums[np.concatenate([[0], ends])]).max()


def balance(costs, stages):
    n = len(costs)
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(costs, dtype=float))])
    least = np.full((stages + 1, n + 1), np.inf)
    least[0, n] = 0.0
    step = np.zeros((stages + 1, n + 1), dtype=int)
    for k in range(1, stages + 1):
        for i in range(n):
            options = np.maximum(sums[i + 1:] - sums[i], least[k - 1, i + 1:])
            step[k, i] = options.argmin() + 1
            least[k, i] = options.min()
    counts, i = [], 0
    for k in range(stages, 0, -1):
        counts.append(step[k, i])
        i += step[k, i]
    return np.array(counts)
