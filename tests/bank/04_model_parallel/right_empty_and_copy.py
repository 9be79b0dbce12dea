import torch


def place(model, balance, devices):
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append(model[at:at + n].to(device))
        at += n
    return stages


def forward(stages, devices, x):
    values = [x]
    for stage, device in zip(stages, devices):
        here = values[-1]
        if here.device != device:
            there = torch.empty(here.shape, dtype=here.dtype, device=device)
            there.copy_(here)
            here = there
        values.append(stage(here))
    return values[-1]


def train_step(stages, devices, x, target, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(forward(stages, devices, x), target.to(devices[-1]))
    loss.backward()
    optimizer.step()
    return loss.item()
