import torch
from torch import nn


def forward(machine, x, ahead):
    """The read of layer k + ahead comes right before the wait for layer k, when k - 1 has been freed."""
    total, held = machine.count, {}
    for k in range(min(ahead, total)):
        held[k] = machine.read(k)
    for k in range(total):
        if k + ahead < total:
            held[k + ahead] = machine.read(k + ahead)
        weights = held[k].wait()
        x = machine.forward(k, weights, x)
        if k < total - ahead - 1:
            held[k].free()
            del held[k]
    return x, held


def backward(machine, gradient, handles, ahead):
    k = machine.count - 1
    while k >= 0:
        handle = handles.pop(k)
        gradient = machine.backward(k, handle.wait(), gradient)
        handle.free()
        if handles and min(handles) > 0 or not handles and k > 0:
            missing = min(handles, default=k) - 1
            handles[missing] = machine.read(missing)
        k -= 1
    return gradient


def tiled_forward(disk, x):
    y = None
    for k in range(disk.count):
        handle = disk.read(k)
        part = nn.functional.linear(x, *handle.wait())
        y = part if y is None else torch.hstack([y, part])
        handle.free()
    return y


def tiled_backward(disk, x, gradient):
    """By autograd, tile by tile."""
    total, begin = None, 0
    for k in range(disk.count):
        handle = disk.read(k)
        weight, bias = (tensor.detach().requires_grad_() for tensor in handle.wait())
        leaf = x.detach().clone().requires_grad_()
        end = begin + weight.shape[0]
        nn.functional.linear(leaf, weight, bias).backward(gradient[:, begin:end])
        disk.write(k, weight.grad, bias.grad)
        total = leaf.grad if total is None else total + leaf.grad
        begin = end
        handle.free()
    return total
