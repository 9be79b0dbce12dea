from functools import reduce
from itertools import accumulate

from torch import nn


def place(model, balance, devices):
    ends = list(accumulate(balance))
    starts = [0] + ends[:-1]
    return nn.ModuleList(model[a:b].to(d) for a, b, d in zip(starts, ends, devices))


def forward(stages, devices, x):
    return reduce(lambda value, pair: pair[0](value.to(pair[1])), zip(stages, devices), x)


def train_step(stages, devices, x, target, loss_fn, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = loss_fn(forward(stages, devices, x), target.to(devices[-1], non_blocking=True))
        loss.backward()
        return loss
    return optimizer.step(closure).detach()
