import torch


def share(rows, rank):
    counts = torch.zeros(rank.size)
    counts[rank.rank] = rows
    handle = rank.start_all_reduce(counts)
    handle.wait()
    return float(counts[rank.rank] / counts.sum())


def average(parameters, share, rank):
    handles = []
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad * share
        handles.append(rank.start_all_reduce(p.grad))
    for h in handles:
        h.wait()


class Turns:
    def __init__(self, parameters, share, rank):
        self.waiting = list(parameters)
        self.share, self.rank = share, rank
        self.ready, self.handles = [], []

    def __call__(self, parameter):
        self.ready.append(id(parameter))
        self.go()

    def go(self, everything=False):
        while self.waiting and (everything or id(self.waiting[-1]) in self.ready):
            p = self.waiting.pop()
            if p.grad is None:
                p.grad = torch.zeros(p.shape, dtype=p.dtype)
            p.grad *= self.share
            self.handles.append(self.rank.start_all_reduce(p.grad))


def backward(loss, parameters, share, rank):
    turns = Turns(parameters, share, rank)
    hooks = [p.register_post_accumulate_grad_hook(turns) for p in parameters]
    try:
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    turns.go(everything=True)
    [handle.wait() for handle in turns.handles]
