# misconception: all-at-once
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
    handles, complete = [], set()

    def start(parameter):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        handles.append(rank.start_all_reduce(parameter.grad.mul_(share)))

    def hook(parameter):
        complete.add(parameter)
        if len(complete) == len(parameters):
            for each in reversed(parameters):
                start(each)

    hooks = [parameter.register_post_accumulate_grad_hook(hook) for parameter in parameters]
    loss.backward()
    for each in hooks:
        each.remove()
    if len(complete) < len(parameters):
        for each in reversed(parameters):
            start(each)
    for handle in handles:
        handle.wait()
