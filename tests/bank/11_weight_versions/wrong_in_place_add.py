# misconception: in-place
def version(rule, stages, stage, micro_batch, per_update=1):
    if rule == 'pipedream':
        return max(0, micro_batch - (stages - stage - 1))
    if rule == 'vertical sync':
        return max(0, micro_batch - stages + 1)
    return max(micro_batch // per_update - 1, 0)


class Stash:
    def __init__(self, weights):
        self.weights = weights

    def forward(self, i):
        return self.weights

    def backward(self, i):
        return self.weights

    def update(self, change):
        self.weights.add_(change)


def train(weights, gradient, micro_batches, per_update, lr):
    old, new = weights, weights
    for group in range(micro_batches // per_update):
        mean = 0
        for k in range(per_update):
            mean = mean + gradient(old, group * per_update + k) / per_update
        old, new = new, new - lr * mean
    return new
