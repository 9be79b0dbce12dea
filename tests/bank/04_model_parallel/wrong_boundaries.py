# misconception: boundaries
def place(model, balance, devices):
    stages, before = [], 0
    for cut, device in zip(balance, devices):
        stages.append(model[before:cut].to(device))
        before = cut
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
