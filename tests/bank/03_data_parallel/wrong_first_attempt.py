# misconception: hook-order
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

    def hook(parameter):
        parameter.grad *= share
        handles.append(rank.start_all_reduce(parameter.grad))

    hooks = [parameter.register_post_accumulate_grad_hook(hook) for parameter in parameters]
    loss.backward()
    for handle in handles:
        handle.wait()
    for each in hooks:
        each.remove()
