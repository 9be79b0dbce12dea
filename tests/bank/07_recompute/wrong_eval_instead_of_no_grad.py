# misconception: eval-forward
import torch


def forward(layer, x):
    layer.eval()
    with torch.no_grad():
        y = layer(x.clone())
    layer.train()
    return y, x


def backward(layer, kept, gradient):
    x = kept.detach().requires_grad_()
    layer(x.clone()).backward(gradient)
    return x.grad
