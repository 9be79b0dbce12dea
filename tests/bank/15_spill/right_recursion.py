import heapq

import torch


def cut(weights, working, memory, buffer):
    """The fewest shards by dynamic programming."""
    n = len(weights)
    best = {n: []}
    for start in range(n - 1, -1, -1):
        options = [[end - start, *best[end]] for end in range(start + 1, n + 1)
                   if end in best and sum(weights[start:end]) <= buffer
                   and sum(weights[start:end]) + sum(working[start:end]) <= memory - buffer]
        if options:
            best[start] = min(options, key=len)
    if 0 not in best:
        raise ValueError('no cut fits')
    return best[0]


def train_step(shards, x, target, loss_fn, device):
    loss, _ = _visit(shards, 0, x, target, loss_fn, device)
    return loss


def _visit(shards, k, x, target, loss_fn, device):
    """The loss, and the gradient of the input of shard k, on the host."""
    shard = shards[k]
    if k + 1 == len(shards):
        shard.to(device)
        leaf = x.to(device).detach().requires_grad_()
        loss = loss_fn(shard(leaf), target.to(device))
        loss.backward()
        shard.to('cpu')
        return loss.item(), leaf.grad.to('cpu')
    shard.to(device)
    with torch.no_grad():
        y = shard(x.to(device)).to('cpu')
    shard.to('cpu')
    loss, gradient = _visit(shards, k + 1, y, target, loss_fn, device)
    shard.to(device)
    leaf = x.to(device).detach().requires_grad_()
    shard(leaf).backward(gradient.to(device))
    shard.to('cpu')
    return loss, leaf.grad.to('cpu')


def next_model(units, done, busy):
    heap = [(-sum(seconds[count:]), m) for m, (seconds, count) in enumerate(zip(units, done))
            if count < len(seconds) and m not in set(busy)]
    heapq.heapify(heap)
    return heap[0][1] if heap else None
