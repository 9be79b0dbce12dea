# misconception: keeps-all
def version(rule, stages, stage, micro_batch, per_update=1):
    if rule == 'pipedream':
        return max(0, micro_batch - (stages - stage - 1))
    if rule == 'vertical sync':
        return max(0, micro_batch - stages + 1)
    return max(micro_batch // per_update - 1, 0)


class Stash:
    def __init__(self, weights):
        self.versions = [weights]
        self.used = {}

    def forward(self, i):
        self.used[i] = len(self.versions) - 1
        return self.versions[-1]

    def backward(self, i):
        return self.versions[self.used[i]]

    def update(self, change):
        self.versions.append(self.versions[-1] + change)


def train(weights, gradient, micro_batches, per_update, lr):
    old, new = weights, weights
    for group in range(micro_batches // per_update):
        mean = 0
        for k in range(per_update):
            mean = mean + gradient(old, group * per_update + k) / per_update
        old, new = new, new - lr * mean
    return new
