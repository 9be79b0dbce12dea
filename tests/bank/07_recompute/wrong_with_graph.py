# misconception: graph-kept
import torch


def forward(layer, x):
    x.requires_grad_()
    y = layer(x)
    return y, (x, y)


def backward(layer, kept, gradient):
    x, y = kept
    y.backward(gradient)
    return x.grad
