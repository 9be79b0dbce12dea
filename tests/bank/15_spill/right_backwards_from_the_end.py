import torch


def cut(weights, working, memory, buffer):
    """From the last layer to the first: as few shards, but other ones."""
    room = memory - buffer
    pairs = list(zip(weights, working))
    if any(w > buffer or w + k > room for w, k in pairs):
        raise ValueError('too large')
    shards = []
    while pairs:
        take = 1
        while take < len(pairs) and sum(w for w, _ in pairs[-take - 1:]) <= buffer and sum(
                map(sum, pairs[-take - 1:])) <= room:
            take += 1
        shards.insert(0, take)
        del pairs[-take:]
    return tuple(shards)


class OnDevice:
    """Inside, a shard is on the device."""

    def __init__(self, shard, device):
        self.shard, self.device = shard, device

    def __enter__(self):
        return self.shard.to(self.device)

    def __exit__(self, *_):
        self.shard.to('cpu')


def train_step(shards, x, target, loss_fn, device):
    kept = {0: x}
    last = len(shards) - 1
    for k in range(last):
        with OnDevice(shards[k], device) as shard, torch.inference_mode():
            y = shard(kept[k].to(device))
        kept[k + 1] = y.cpu()
    gradient = None
    for k in range(last, -1, -1):
        with OnDevice(shards[k], device) as shard:
            leaf = kept.pop(k).clone().to(device).requires_grad_(True)
            out = shard(leaf)
            if k == last:
                out = loss_fn(out, target.to(device))
                loss = float(out)
                torch.autograd.backward([out])
            else:
                torch.autograd.backward([out], [gradient.to(device)])
            gradient = leaf.grad.cpu()
    return loss


def next_model(units, done, busy):
    best = None
    for m in range(len(units)):
        if m in busy:
            continue
        remaining = 0.0
        for k in range(done[m], len(units[m])):
            remaining = remaining + units[m][k]
        if done[m] == len(units[m]):
            continue
        if best is None or remaining > best[0]:
            best = (remaining, m)
    return None if best is None else best[1]
