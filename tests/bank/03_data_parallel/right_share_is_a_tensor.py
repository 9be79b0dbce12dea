import torch


def share(rows, rank):
    total = torch.tensor([float(rows)])
    rank.start_all_reduce(total).wait()
    return rows / total


def average(parameters, share, rank):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.mul_(share)
        rank.start_all_reduce(parameter.grad).wait()


def backward(loss, parameters, share, rank):
    """A coroutine that gets every parameter whose gradient is complete, and None at the end."""
    def reducer():
        complete, handles = set(), []
        for parameter in reversed(parameters):
            while parameter not in complete and None not in complete:
                complete.add((yield))
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= share
            handles.append(rank.start_all_reduce(parameter.grad))
        while None not in complete:
            complete.add((yield))
        yield handles

    running = reducer()
    next(running)
    hooks = [parameter.register_post_accumulate_grad_hook(lambda p: running.send(p)) for parameter in parameters]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for handle in running.send(None):
        handle.wait()
