# misconception: move-dropped
def place(model, balance, devices):
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append(model[at:at + n].to(device))
        at += n
    return stages


def forward(stages, devices, x):
    for stage, device in zip(stages, devices):
        x.to(device)
        x = stage(x)
    return x


def train_step(stages, devices, x, target, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(forward(stages, devices, x), target.to(devices[-1]))
    loss.backward()
    optimizer.step()
    return loss.item()
