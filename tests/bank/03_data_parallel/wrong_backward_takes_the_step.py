# misconception: changes-weights
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
            parameter = turns[len(handles)]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.mul_(share)
            handles.append(rank.start_all_reduce(parameter.grad))

    def is_complete(parameter):
        complete.add(parameter)
        start()

    hooks = [parameter.register_post_accumulate_grad_hook(is_complete) for parameter in parameters]
    loss.backward()
    for hook in hooks:
        hook.remove()
    complete.update(parameters)
    start()
    for handle in handles:
        handle.wait()
    with torch.no_grad():
        for parameter in parameters:
            parameter.sub_(0.1 * parameter.grad)
