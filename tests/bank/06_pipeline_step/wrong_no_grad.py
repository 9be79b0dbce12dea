# misconception: kept-without-graph
import torch


class Stage:
    def __init__(self, module):
        self.module = module
        self.saved = {}

    def forward(self, i, x):
        if x.is_floating_point():
            x = x.detach().requires_grad_(True)
        with torch.no_grad():
            y = self.module(x)
        self.saved[i] = (x, y)
        return y

    def backward(self, i, gradient):
        x, y = self.saved.pop(i)
        y.backward(gradient)
        return x.grad


def step(stages, micro_batches, targets, loss_fn):
    outputs = []
    for i, x in enumerate(micro_batches):
        for stage in stages:
            x = stage.forward(i, x)
        outputs.append(x)
    total_rows = sum(len(x) for x in micro_batches)
    total = 0.0
    for i in range(len(micro_batches)):
        y = outputs[i].detach().requires_grad_(True)
        loss = loss_fn(y, targets[i]) * (len(micro_batches[i]) / total_rows)
        loss.backward()
        total += loss.item()
        gradient = y.grad
        for stage in reversed(stages):
            gradient = stage.backward(i, gradient)
    return total
