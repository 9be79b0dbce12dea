# misconception: own-seed
import torch


SEED = 1234


def forward(layer, x):
    torch.manual_seed(SEED)
    with torch.no_grad():
        return layer(x.clone()), x


def backward(layer, kept, gradient):
    torch.manual_seed(SEED)
    x = kept.detach().requires_grad_(kept.is_floating_point())
    y = layer(x.clone())
    y.backward(gradient)
    return x.grad
