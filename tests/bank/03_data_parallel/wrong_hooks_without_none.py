# misconception: skips-none
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
    turns, complete, handles = list(reversed(parameters)), [], []

    def hook(parameter):
        complete.append(id(parameter))
        while len(handles) < len(turns) and id(turns[len(handles)]) in complete:
            grad = turns[len(handles)].grad
            grad *= share
            handles.append(rank.start_all_reduce(grad))

    hooks = [parameter.register_post_accumulate_grad_hook(hook) for parameter in parameters]
    loss.backward()
    for each in hooks:
        each.remove()
    for handle in handles:
        handle.wait()
