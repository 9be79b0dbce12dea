# misconception: frees-early
def version(rule, stages, stage, micro_batch, per_update=1):
    if rule == 'pipedream':
        return max(0, micro_batch - (stages - stage - 1))
    if rule == 'vertical sync':
        return max(0, micro_batch - stages + 1)
    return max(micro_batch // per_update - 1, 0)


class Stash:
    def __init__(self, weights):
        self.now = 0
        self.versions = {0: weights}
        self.of = {}

    def forward(self, i):
        self.of[i] = self.now
        return self.versions[self.now]

    def backward(self, i):
        number = self.of.pop(i)
        if number == self.now:
            return self.versions[number]
        return self.versions.pop(number)

    def update(self, change):
        self.versions[self.now + 1] = self.versions[self.now] + change
        self.now += 1


def train(weights, gradient, micro_batches, per_update, lr):
    old, new = weights, weights
    for group in range(micro_batches // per_update):
        mean = 0
        for k in range(per_update):
            mean = mean + gradient(old, group * per_update + k) / per_update
        old, new = new, new - lr * mean
    return new
