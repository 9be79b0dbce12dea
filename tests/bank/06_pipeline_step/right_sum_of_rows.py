import torch


class Stage:
    def __init__(self, module):
        self.module = module
        self.kept = []

    def forward(self, i, x):
        if x.dtype in (torch.float16, torch.float32, torch.float64):
            x = x.detach().requires_grad_()
        y = self.module(x)
        self.kept.append((i, x, y))
        return torch.tensor(y.tolist(), dtype=y.dtype)

    def backward(self, i, gradient):
        for place, (number, x, y) in enumerate(self.kept):
            if number == i:
                y.backward(gradient)
                del self.kept[place]
                return x.grad
        raise KeyError(i)


def step(stages, micro_batches, targets, loss_fn):
    def through(i, x):
        for stage in stages:
            x = stage.forward(i, x)
        return x.requires_grad_()

    outputs = [through(i, x) for i, x in enumerate(micro_batches)]
    rows = [len(x) for x in micro_batches]
    loss = sum(loss_fn(y, t) * n for y, t, n in zip(outputs, targets, rows)) / sum(rows)
    loss.backward()
    for i, y in enumerate(outputs):
        gradient = y.grad
        for stage in reversed(stages):
            gradient = stage.backward(i, gradient)
    return loss.detach()
