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
    turns, complete, handles = parameters[::-1], set(), []

    def start():
        while len(handles) < len(turns) and turns[len(handles)] in complete:
            handles.append(rank.start_all_reduce(turns[len(handles)].grad.mul_(share)))

    def is_complete(parameter):
        complete.add(parameter)
        start()

    hooks = [parameter.register_post_accumulate_grad_hook(is_complete) for parameter in parameters]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for parameter in turns:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
            complete.add(parameter)
            start()
    for handle in handles:
        handle.wait()
