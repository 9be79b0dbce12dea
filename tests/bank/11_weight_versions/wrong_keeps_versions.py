# misconception: keeps-versions
import torch


def version(rule, stages, stage, micro_batch, per_update=1):
    if rule == 'pipedream':
        return max(0, micro_batch - (stages - stage - 1))
    if rule == 'vertical sync':
        return max(0, micro_batch - stages + 1)
    return max(micro_batch // per_update - 1, 0)


class Stash:
    def __init__(self, weights):
        self.weights = weights
        self.kept = {}

    def forward(self, i):
        self.kept[i] = self.weights
        return self.weights

    def backward(self, i):
        return self.kept.pop(i)

    def update(self, change):
        self.weights = self.weights + change


def train(weights, gradient, micro_batches, per_update, lr):
    versions = [weights]
    for t in range(micro_batches // per_update):
        total = torch.zeros_like(weights)
        for i in range(t * per_update, (t + 1) * per_update):
            total += gradient(versions[max(t - 1, 0)], i)
        versions.append(versions[t] - lr * total / per_update)
    return versions[-1]
