# misconception: filled-in-flight
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
        handles.append(rank.start_all_reduce(gradient.mul_(share)))

    hooks = [parameter.register_hook(hook) for parameter in parameters]
    loss.backward()
    for each in hooks:
        each.remove()
    for handle in handles:
        handle.wait()
