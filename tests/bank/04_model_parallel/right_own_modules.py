from torch import nn


class Part(nn.Module):
    def __init__(self, layers, device):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.device = device
        self.to(device)

    def forward(self, x):
        x = x.to(self.device)
        for layer in self.layers:
            x = layer(x)
        return x


def place(model, balance, devices):
    iterator = iter(model.children())
    return [Part([next(iterator) for _ in range(balance[j])], devices[j]) for j in range(len(balance))]


def forward(stages, devices, x):
    j = 0
    while j < len(stages):
        if x.device != devices[j]:
            x = x.cuda(devices[j].index)
        x = stages[j](x)
        j += 1
    return x


def train_step(stages, devices, x, target, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(forward(stages, devices, x), target.to(devices[-1]))
    loss.backward()
    optimizer.step()
    return loss.item()
