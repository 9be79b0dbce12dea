import torch


def cut(weights, working, memory, buffer):
    groups = [[]]
    for layer in range(len(weights)):
        candidate = groups[-1] + [layer]
        if _fits(candidate, weights, working, memory, buffer):
            groups[-1] = candidate
        elif _fits([layer], weights, working, memory, buffer):
            groups.append([layer])
        else:
            raise ValueError(layer)
    return map(len, groups)


def _fits(layers, weights, working, memory, buffer):
    stored = sum(weights[k] for k in layers)
    return stored <= buffer and stored + sum(working[k] for k in layers) + buffer <= memory


def train_step(shards, x, target, loss_fn, device):
    boundary = [x.detach().clone()]
    for shard in shards[:len(shards) - 1]:
        shard.to(device)
        boundary.append(shard(boundary[-1].to(device)).detach().to('cpu'))
        shard.to('cpu')
    gradient = None
    for number in reversed(range(len(shards))):
        shard = shards[number].to(device)
        leaf = boundary[number].requires_grad_()
        y = shard(leaf.to(device))
        if number == len(shards) - 1:
            loss = loss_fn(y, target.to(device))
            parts = torch.autograd.grad(loss, [leaf, *shard.parameters()])
        else:
            parts = torch.autograd.grad(y, [leaf, *shard.parameters()], gradient.to(device))
        gradient, *own = parts
        for parameter, part in zip(shard.parameters(), own):
            parameter.grad = part if parameter.grad is None else parameter.grad + part
        boundary.pop()
        shards[number].to('cpu')
    return loss.detach()


def next_model(units, done, busy):
    remaining = torch.tensor([float(sum(seconds[count:])) for seconds, count in zip(units, done)])
    able = torch.tensor([m not in busy and done[m] < len(units[m]) for m in range(len(units))])
    if not able.any():
        return None
    return torch.where(able, remaining, torch.tensor(-1.0)).argmax()
