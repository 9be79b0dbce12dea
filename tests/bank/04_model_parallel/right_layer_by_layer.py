from torch import nn


def place(model, balance, devices):
    layers = list(model)
    stages = []
    for n, device in zip(balance, devices):
        mine, layers = layers[:n], layers[n:]
        for layer in mine:
            layer.to(device)
        stages.append(nn.Sequential(*mine))
    return tuple(stages)


def forward(stages, devices, x):
    for j in range(len(stages)):
        for layer in stages[j]:
            x = layer(x.to(devices[j]))
    return x


def train_step(stages, devices, x, target, loss_fn, optimizer):
    y = forward(stages, devices, x.to(devices[0]))
    target = target.to(y.device)
    loss = loss_fn(y, target)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return float(loss)
