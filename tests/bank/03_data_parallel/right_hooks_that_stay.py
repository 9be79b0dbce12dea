import torch

def share(rows, rank):
    total = torch.tensor([rows], dtype=torch.float32)
    h = rank.start_all_reduce(total)
    h.wait()
    return (rows / total)[0].item()


def average(parameters, share, rank):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad = parameter.grad * share
        handle = rank.start_all_reduce(parameter.grad)
        handle.wait()


def backward(loss, parameters, share, rank):
    """Registers its hooks once, and keeps them."""
    first = parameters[0]
    if not hasattr(first, 'hook_of_this_step'):
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda p, n=number: first.hook_of_this_step(n))
    seen, handles = set(), []

    def hook(number):
        seen.add(number)
        while len(handles) < len(parameters) and len(parameters) - 1 - len(handles) in seen:
            p = parameters[len(parameters) - 1 - len(handles)]
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.data.mul_(share)
            handles.append(rank.start_all_reduce(p.grad))

    first.hook_of_this_step = hook
    loss.backward()
    for number in range(len(parameters)):
        hook(number)
    for handle in handles:
        handle.wait()
