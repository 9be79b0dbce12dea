import torch


def version(rule, stages, stage, micro_batch, per_update=1):
    if rule == '2bw':
        made = 0
        for k in range(micro_batch + 1):
            if k and k % per_update == 0:
                made += 1
        return made - 1 if made else 0
    first = stages - 1 - (stage if rule == 'pipedream' else 0)
    updates = 0
    for earlier in range(micro_batch):
        if earlier + first < micro_batch:
            updates += 1
    return updates


class Stash:
    """By version, with the number of micro-batches that still need it."""

    def __init__(self, weights):
        self.versions = [[0, weights, 0]]
        self.of = {}

    def forward(self, micro_batch):
        newest = self.versions[-1]
        newest[2] += 1
        self.of[micro_batch] = newest[0]
        return newest[1]

    def backward(self, micro_batch):
        number = self.of.pop(micro_batch)
        for entry in self.versions:
            if entry[0] == number:
                entry[2] -= 1
                found = entry[1]
        self._clean()
        return found

    def update(self, change):
        number, weights, _ = self.versions[-1]
        self.versions.append([number + 1, torch.add(weights, change), 0])
        self._clean()

    def _clean(self):
        self.versions = [entry for entry in self.versions[:-1] if entry[2]] + self.versions[-1:]


def train(weights, gradient, micro_batches, per_update, lr):
    buffers = [weights.clone(), weights.clone()]
    total = torch.zeros_like(weights)
    newest = 0
    for i in range(micro_batches):
        total.add_(gradient(buffers[1 - newest] if i >= per_update else buffers[0], i))
        if (i + 1) % per_update == 0:
            older = 1 - newest
            buffers[older].copy_(buffers[newest]).sub_(total, alpha=lr / per_update)
            total.zero_()
            newest = older
    return buffers[newest]
