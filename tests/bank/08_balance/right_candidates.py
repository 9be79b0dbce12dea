import torch


def slowest(costs, balance):
    return max(part.sum() for part in torch.tensor(costs, dtype=torch.float64).split(list(balance)))


class Chain:
    def __init__(self, costs):
        self.costs = list(costs)

    def needs(self, limit):
        """Number of layers of each stage when every stage is filled as far as the limit allows."""
        pieces = [[]]
        for cost in self.costs:
            if pieces[-1] and sum(pieces[-1]) + cost > limit:
                pieces.append([])
            pieces[-1].append(cost)
        return [len(piece) for piece in pieces]

    def limits(self):
        found = set()
        for start in range(len(self.costs)):
            total = 0
            for cost in self.costs[start:]:
                total = total + cost
                found.add(total)
        return sorted(limit for limit in found if limit >= max(self.costs))


def balance(costs, stages):
    chain = Chain(costs)
    limits = chain.limits()
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if len(chain.needs(limits[middle])) <= stages:
            high = middle
        else:
            low = middle + 1
    counts = chain.needs(limits[low])
    while len(counts) < stages:
        stage = next(stage for stage, count in enumerate(counts) if count > 1)
        counts[stage:stage + 1] = [counts[stage] - 1, 1]
    return tuple(counts)
