# misconception: handed-back
import torch
from torch.utils.checkpoint import CheckpointFunction


def forward(layer, x):
    x = x.detach().requires_grad_(x.is_floating_point())
    y = CheckpointFunction.apply(layer, True, x)
    return y.detach(), (x, y)


def backward(layer, kept, gradient):
    x, y = kept
    y.backward(gradient)
    return x.grad
