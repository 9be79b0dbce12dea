# misconception: own-numbers
def place(model, balance, devices):
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append(model[at:at + n].to(device))
        at += n
    return stages


def forward(stages, devices, x):
    for j in range(len(stages)):
        x = stages[j](x.to(f'cuda:{j}'))
    return x


def train_step(stages, devices, x, target, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(forward(stages, devices, x), target.to(devices[-1]))
    loss.backward()
    optimizer.step()
    return loss.item()
