# misconception: graph-kept
import torch


def forward(layer, x):
    x = x.detach().requires_grad_(x.is_floating_point())
    y = layer(x.clone())
    return y.detach(), {'input': x, 'output': y}


def backward(layer, kept, gradient):
    torch.autograd.backward(kept['output'], gradient)
    return kept['input'].grad
