# misconception: sum-not-mean
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
    old = new = weights
    for group in range(micro_batches // per_update):
        total = sum(gradient(old, group * per_update + k) for k in range(per_update))
        old, new = new, new - lr * total
    return new
