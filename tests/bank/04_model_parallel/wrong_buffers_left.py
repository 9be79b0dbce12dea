# misconception: buffers-left
def place(model, balance, devices):
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stage = model[at:at + n]
        for p in stage.parameters():
            p.data = p.data.to(device)
        stages.append(stage)
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
