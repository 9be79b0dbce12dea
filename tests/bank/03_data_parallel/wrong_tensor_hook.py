# misconception: incoming-only
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
    handles = []

    def hook(gradient):
        gradient = gradient * share
        handle = rank.start_all_reduce(gradient)
        handles.append((handle, gradient))
        return gradient

    hooks = [parameter.register_hook(hook) for parameter in parameters]
    olds = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    for hook in hooks:
        hook.remove()
    for (handle, gradient), parameter in zip(handles, reversed(parameters)):
        handle.wait()
        parameter.grad = gradient
    for old, parameter in zip(olds, parameters):
        if old is not None:
            parameter.grad = parameter.grad + old
