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


class Loss:
    """The squared error, which looks where it is computed."""

    def __init__(self, gpus: PretendGpus, device: torch.device) -> None:
        self._gpus, self._device = gpus, device

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        where = [self._gpus.device_of(tensor) for tensor in (output, target)]
        case = f'the output is on {where[0]}, the target on {where[1]}, and the last stage on {self._device}'
        if where[0] != where[1]:
            raise Failure(misconception='target-stays', case=case)
        if where[0] != self._device:
            raise Failure(misconception='loss-at-home', case=case)
        return nn.functional.mse_loss(output, target)


def plain_step(model: nn.Sequential, x: torch.Tensor, target: torch.Tensor, optimizer: torch.optim.Optimizer, *,
                clears: bool = True, clears_late: bool = False, steps: bool = True) -> torch.Tensor:
    if clears:
        optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    if clears_late:
        optimizer.zero_grad()
    if steps:
        optimizer.step()
    return loss


def train(model: nn.Sequential, case: Case, step: Step) -> Any:
    """Losses and what the model is afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    x, target = case.batch(model)
    losses = []
    for k in range(STEPS):
        loss = step(model, x + k, target, optimizer)
        if loss is None:
            raise Failure(misconception='returns-nothing')
        losses.append(float(loss.detach() if isinstance(loss, torch.Tensor) else loss))
    return [losses, *[tensor.detach().clone() for tensor in model.state_dict().values()]]
