"""Training with delayed weights, written down plainly: what asynchronous schedules are held against.

No schedule, device, stage or message here: for each update the paper says at which weights the
gradient was taken, and by how many updates those are old.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.func import functional_call

Optimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
Values = dict[str, torch.Tensor]


class Delayed:
    """A model in parts, one a stage, whose weights of earlier updates are all remembered."""

    def __init__(self, model: nn.Sequential, balance: Sequence[int], optimizer: Optimizer) -> None:
        layers = list(copy.deepcopy(model))
        self.parts = [nn.Sequential(*(layers.pop(0) for _ in range(count))) for count in balance]
        self._optimizers = [optimizer(part.parameters()) if [*part.parameters()] else None
                            for part in self.parts]
        self._unit = 0
        self._rows: list[list[int]] = [[] for _ in self.parts]   # of the mini-batches of a round
        self._history: list[list[Values]] = [[self._copy(part)] for part in self.parts]

    def update(self, versions: Sequence[Sequence[int]], xs: Sequence[torch.Tensor],
               ys: Sequence[torch.Tensor], loss_fn: Callable) -> list[float]:
        """One update by the mean gradient of micro-batches `xs`, the k-th of them at weights
        `versions[k]`, a version a stage. Its losses."""
        rows = sum(map(len, xs))
        losses = [self._backward(used, x, y, loss_fn, len(y) / rows) for used, x, y in zip(versions, xs, ys)]
        for stage in range(len(self.parts)):
            self._step(stage)
        return losses

    def mini_batch(self, number: int, versions: Sequence[int], x: torch.Tensor, y: torch.Tensor,
                   loss_fn: Callable, replicas: Sequence[int]) -> float:
        """One mini-batch at weights `versions`; a stage on r devices makes one update by the mean over the rows
        of r mini-batches, when it has all of them. Its loss. (Rows are counted in those of the first mini-batch, or
        without replicas of each: where all have as many, nothing is rounded.)"""
        self._unit = self._unit if self._unit and max(replicas) > 1 else len(y)
        loss = self._backward(versions, x, y, loss_fn, len(y) / self._unit)
        for rows, (stage, count) in zip(self._rows, enumerate(replicas)):
            rows.append(len(y))
            if (number + 1) % count == 0:
                for parameter in self.parts[stage].parameters():
                    parameter.grad /= sum(rows) / self._unit
                rows.clear()
                self._step(stage)
        return loss

    def _backward(self, versions: Sequence[int], x: torch.Tensor, y: torch.Tensor, loss_fn: Callable,
                  share: float) -> float:
        leaves = [{name: value.detach().requires_grad_() for name, value in past[version].items()}
                  for past, version in zip(self._history, versions)]
        for part, values in zip(self.parts, leaves):
            x = functional_call(part, values, (x,))
        loss = loss_fn(x, y)
        (loss * share).backward()
        for part, values in zip(self.parts, leaves):
            for name, parameter in part.named_parameters():
                parameter.grad = (values[name].grad if parameter.grad is None
                                  else parameter.grad + values[name].grad)
        return loss.item()

    def _step(self, stage: int) -> None:
        if (optimizer := self._optimizers[stage]) is not None:
            optimizer.step()
            optimizer.zero_grad()
        self._history[stage].append(self._copy(self.parts[stage]))

    def parameters(self) -> list[torch.Tensor]:
        return [parameter for part in self.parts for parameter in part.parameters()]

    @staticmethod
    def _copy(part: nn.Module) -> Values:
        return {name: parameter.detach().clone() for name, parameter in part.named_parameters()}


def pipedream(stages: int, mini_batch: int) -> list[int]:
    """Updates that the weights of mini-batch `mini_batch` have seen, a number a stage, both counted
    from 0 (arXiv 1806.03377): w(t+1) = w(t) - v grad f(w_1(t-n+1), ..., w_n(t)), and fewer while
    the pipeline fills."""
    return [max(mini_batch - (stages - 1 - stage), 0) for stage in range(stages)]


def replicated(replicas: Sequence[int], mini_batch: int) -> list[int]:
    """The same where stages have replicas (section 3.3): a stage on r devices makes an update a round of r
    mini-batches. On each of its devices as many mini-batches are on their way as keep the devices from
    this stage on busy, rounded up, so the weights lack the updates of that many rounds but one."""
    return [max(mini_batch // r - (math.ceil(sum(replicas[stage:]) / r) - 1), 0)
            for stage, r in enumerate(replicas)]


def two_bw(stages: int, micro_batch: int, update_every: int) -> list[int]:
    """The same of a micro-batch counted from 0 (arXiv 2006.09503, where it is counted from 1):
    max(floor((k - 1) / m) - 1, 0), on every stage."""
    return [max(micro_batch // update_every - 1, 0)] * stages


def vertical(stages: int, mini_batch: int) -> list[int]:
    """With vertical sync: w(t+1) = w(t) - v grad f(w_1(t-n+1), ..., w_n(t-n+1))."""
    return [max(mini_batch - (stages - 1), 0)] * stages
