# misconception: copies
from torch import nn


def place(model, balance, devices):
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stage = model[at:at + n]
        for module in stage.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(device)))
        stages.append(stage.to(device))
        at += n
    return stages


def forward(stages, devices, x):
    for stage, device in zip(stages, devices):
        x = stage(x.to(device))
    return x


def train_step(stages, devices, x, target, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(forward(stages, devices, x), target.to(devices[-1]))
    loss.backward()
    optimizer.step()
    return loss.item()
