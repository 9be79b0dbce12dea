# misconception: equal-stages
def place(model, balance, devices):
    size = len(model) // len(devices)
    stages = []
    for j, device in enumerate(devices):
        end = len(model) if j == len(devices) - 1 else (j + 1) * size
        stages.append(model[j * size:end].to(device))
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
