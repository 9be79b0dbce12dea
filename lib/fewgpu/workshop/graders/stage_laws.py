"""For the grader of exercise 06: a stage puts out bare tensors, leaves its input alone, and runs its layers once."""

from random import Random
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.graders.plays import MakeStage, is_right
from fewgpu.workshop.graders.staged import DRAWS, FLOATS, play
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.work import Work


class OnTheWire:
    """The learner's stage, at the end of a wire that carries bare numbers."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage
        self.backward = stage.backward

    def forward(self, i: int, x: torch.Tensor) -> Any:
        y = self._stage.forward(i, x)
        if isinstance(y, torch.Tensor) and y.grad_fn is not None:
            raise Failure(f'What `forward({i}, x)` returns has the grad_fn {y.grad_fn.name()}.',
                          misconception='graph-crosses')
        return y


def check_input_is_left_alone(work: Work, make: MakeStage, random: Random) -> None:
    """Raise Failure if the tensor that was handed in is another one afterwards, and so the same again gives more."""
    case = play('F0 B0', random)
    x, gradient = case.inputs[0].clone(), case.gradient(0)
    stage = make(case.layer())
    stage.forward(0, x)
    asks, is_written_over = x.requires_grad, not torch.equal(x, case.inputs[0])
    stage.backward(0, gradient)
    if asks or is_written_over:
        what, yours = ('x.requires_grad', True) if asks else ('Are the numbers in x others than before?', 'yes')
        raise Failure(misconception='callers-tensor', lines=work.definition('Stage'),
                      case=f'layer = {FLOATS}\nstage.forward(0, x)\n{what}\nyours     {yours}\n'
                           f'expected  {False if asks else "no"}')


def check_runs_once(work: Work, make: MakeStage, random: Random) -> None:
    """Raise Failure if layers that draw and count do not give what the plain ones give."""
    case = play('F0 F1 B0 B1', random, DRAWS)
    runs: list[int] = []

    def counted(layer: nn.Module) -> Any:
        layer.register_forward_pre_hook(lambda *_: runs.append(1))
        return make(layer)

    if not is_right(case, counted, 'y gradient parameters buffers'):
        twice = len(runs) > case.order.count('F')
        raise Failure(f'They have run {len(runs)} times for 2 micro-batches.' if twice else
                      'With dropout and batch norm the results are not those of the layers.', case=str(case),
                      misconception='runs-twice' if twice else '', lines=work.definition('Stage'))
