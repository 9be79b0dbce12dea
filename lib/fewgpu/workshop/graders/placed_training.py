"""A few training steps, for the grader of exercise 04: the plain model's, right and wrong, and the learner's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.graders.placed import Case
from fewgpu.workshop.practice.gpus import PretendGpus

STEPS = 3
Step = Callable[[nn.Sequential, torch.Tensor, torch.Tensor, torch.optim.Optimizer], Any]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error, and more for what is too large: output and target do not stand for each other."""
    error = output - target
    return (error.square() + error.relu()).mean()


class Loss:
    """The loss, which looks where it is computed."""

    def __init__(self, gpus: PretendGpus, device: torch.device) -> None:
        self._gpus, self._device = gpus, device
        self.calls = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        where = [self._gpus.device_of(tensor) for tensor in (output, target)]
        case = f'the output is on {where[0]}, the target on {where[1]}, and the last stage on {self._device}'
        if where[0] != where[1]:
            raise Failure(misconception='target-stays', case=case)
        if where[0] != self._device:
            raise Failure(misconception='loss-at-home', case=case)
        return loss_of(output, target)


def plain_step(model: nn.Sequential, x: torch.Tensor, target: torch.Tensor, optimizer: torch.optim.Optimizer, *,
               clears: bool = True, clears_late: bool = False, clears_last: bool = False, steps: bool = True,
               swaps: bool = False, measures_again: bool = False) -> torch.Tensor:
    if clears:
        optimizer.zero_grad()
    output = model(x)
    loss = loss_of(target, output) if swaps else loss_of(output, target)
    loss.backward()
    if clears_late:
        optimizer.zero_grad()
    if steps:
        optimizer.step()
    if clears_last:
        optimizer.zero_grad()
    return loss_of(model(x), target) if measures_again else loss


def train(model: nn.Sequential, case: Case, step: Step) -> tuple[Any, bool]:
    """Losses and what the model is afterwards; was a loss handed out with its graph? There are gradients before."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    x, target = case.batch(model)
    losses, has_graph = [], False
    for k in range(STEPS):
        loss = step(model, x + k, target, optimizer)
        if loss is None:
            raise Failure(misconception='returns-nothing')
        if isinstance(loss, torch.Tensor):
            has_graph, loss = has_graph or loss.requires_grad, loss.detach()
        losses.append(float(loss))
    return [losses, *[tensor.detach().clone() for tensor in model.state_dict().values()]], has_graph
