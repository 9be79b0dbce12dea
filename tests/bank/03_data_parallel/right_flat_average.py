import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def share(rows, rank):
    t = torch.tensor(float(rows))
    rank.start_all_reduce(t).wait()
    return float(rows / t)


def average(parameters, share, rank):
    """One reduction for all of them."""
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]).mul(share)
    rank.start_all_reduce(flat).wait()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view(p.shape).clone()


def backward(loss, parameters, share, rank):
    numbers = {p: i for i, p in enumerate(parameters)}
    done = [False] * len(parameters)
    state = {'next': len(parameters) - 1}
    sent = {}

    def launch():
        while state['next'] >= 0 and done[state['next']]:
            p = parameters[state['next']]
            buffer = torch.zeros_like(p.data) if p.grad is None else share * p.grad
            sent[state['next']] = (buffer, rank.start_all_reduce(buffer))
            state['next'] -= 1

    def hook(p):
        done[numbers[p]] = True
        launch()

    hooks = []
    for p in parameters:
        hooks.append(p.register_post_accumulate_grad_hook(hook))
    loss.backward()
    for p in parameters:
        done[numbers[p]] = True
    launch()
    for number, (buffer, handle) in sent.items():
        handle.wait()
        parameters[number].grad = buffer
    for h in hooks:
        h.remove()
