# misconception: first-at-newest
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
        used = versions[1] if t == 1 else versions[max(t - 1, 0)]
        total = sum(gradient(used, t * per_update + k) for k in range(per_update))
        versions.append(versions[-1] - lr * total / per_update)
    return versions[-1]
