# misconception: after-backward
import torch


def share(rows, rank):
    total = torch.tensor([rows], dtype=torch.float64)
    rank.start_all_reduce(total).wait()
    return rows / total.item()


def average(parameters, share, rank):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.mul_(share)
        rank.start_all_reduce(parameter.grad).wait()


def backward(loss, parameters, share, rank):
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads):
        if grad is not None:
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
    average(parameters, share, rank)
