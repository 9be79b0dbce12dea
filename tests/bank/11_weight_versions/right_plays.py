import torch


def version(rule, stages, stage, micro_batch, per_update=1):
    """Plays the row up to the forward."""
    if rule == '2bw':
        group, rest = divmod(micro_batch, per_update)
        return group - 1 if group > 0 else 0
    if rule == 'vertical sync':
        return version('pipedream', stages, 0, micro_batch)
    row = [f'F{i}' for i in range(stages - 1 - stage)]
    i = 0
    while f'F{micro_batch}' not in row:
        row += [f'F{i + stages - 1 - stage}', f'B{i}', 'U']
        i += 1
    return row[:row.index(f'F{micro_batch}')].count('U')


class Stash:
    def __init__(self, weights):
        self.latest = weights
        self.in_flight = []

    def forward(self, micro_batch):
        self.in_flight.append((micro_batch, self.latest))
        return self.latest

    def backward(self, micro_batch):
        for k, (number, weights) in enumerate(self.in_flight):
            if number == micro_batch:
                del self.in_flight[k]
                return weights
        raise KeyError(micro_batch)

    def update(self, change):
        new = self.latest.clone()
        new += change
        self.latest = new


def train(weights, gradient, micro_batches, per_update, lr):
    before, now = weights, weights
    i = 0
    while i < micro_batches:
        mean = torch.zeros_like(now)
        for _ in range(per_update):
            g = gradient(before, i)
            mean += g / per_update
            i += 1
        after = now - lr * mean
        before = now
        now = after
    return now
