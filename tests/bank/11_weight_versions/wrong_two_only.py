# misconception: two-only
def version(rule, stages, stage, micro_batch, per_update=1):
    if rule == 'pipedream':
        return max(0, micro_batch - (stages - stage - 1))
    if rule == 'vertical sync':
        return max(0, micro_batch - stages + 1)
    return max(micro_batch // per_update - 1, 0)


class Stash:
    def __init__(self, weights):
        self.new = self.old = weights
        self.count = 0
        self.version = {}

    def forward(self, i):
        self.version[i] = self.count
        return self.new

    def backward(self, i):
        return self.new if self.version.pop(i) == self.count else self.old

    def update(self, change):
        self.old = self.new
        self.new = self.new + change
        self.count += 1


def train(weights, gradient, micro_batches, per_update, lr):
    old, new = weights, weights
    for group in range(micro_batches // per_update):
        mean = 0
        for k in range(per_update):
            mean = mean + gradient(old, group * per_update + k) / per_update
        old, new = new, new - lr * mean
    return new
