# misconception: other-masks
import torch


def forward(layer, x):
    with torch.no_grad():
        y = layer(x)
    return y, x


def backward(layer, kept, gradient):
    x = kept.detach().requires_grad_()
    y = layer(x)
    y.backward(gradient)
    return x.grad
