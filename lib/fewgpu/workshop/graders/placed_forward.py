"""For the grader of exercise 04: the learner's forward through stages that are rightly placed, and what it moves."""

from typing import Any

import torch
from torch import nn

from fewgpu.workshop.graders.complaints import explained
from fewgpu.workshop.graders.placed import Case, crossings, is_back_and_forth, is_detour, is_everywhere
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.gpus import Move, PretendGpus

MIXED = 'Expected all tensors to be on the same device'


def run(work: Work, case: Case, gpus: PretendGpus) -> tuple[nn.Sequential, torch.Tensor]:
    """The model and the output of the learner's forward, with what can be said of how it came about."""
    model = case.model()
    stages = case.placed(model)
    x, _ = case.batch(model)
    gpus.forget()
    places = _places(model, gpus)
    with explained(work, {MIXED: 'activation-stays'}):
        try:
            output = work.forward(stages, case.devices, x)
        except RuntimeError as error:
            if MIXED in str(error) and len(stages) == 1 and gpus.moves == crossings(case):   # it was moved
                raise Failure(misconception='move-dropped', lines=work.lines(error.__traceback__)) from error
            raise
    biases = [move for move in gpus.moves if len(move.shape) == 1]   # activations have rows, and two dimensions
    if _places(model, gpus) != places or biases:
        raise Failure(misconception='weights-travel', picture=listed(gpus.moves), lines=work.definition('forward'))
    if output is None:
        raise Failure(misconception='returns-nothing', lines=work.definition('forward'))
    return model, output


def _places(model: nn.Module, gpus: PretendGpus) -> list[torch.device]:
    return [gpus.device_of(tensor) for tensor in (*model.parameters(), *model.buffers())]


def need_own_numbers(case: Case) -> None:
    """What becomes of a forward that takes stage j to be on cuda:j."""
    if case.gpus != tuple(range(len(case.gpus))):
        raise RuntimeError('a stage is on another device than its number says')


def without_last(case: Case, device: torch.device) -> list[Any]:
    """Where the output is, and what it is, if the last stage has not run."""
    model = case.model()
    return [str(device), model[:case.cuts[-1][0]](case.batch(model)[0]).detach()]


def listed(moves: list[Move]) -> str:
    return '\n'.join(map(str, moves[:12])) or 'nothing'


def needless(moves: list[Move], wanted: list[Move]) -> str:
    """The misconception behind moves that are not the wanted ones; '' if it is not a known one."""
    if any(is_detour(moves, move) for move in wanted):
        return 'detour'
    if is_everywhere(moves, wanted):
        return 'everywhere'
    return 'back-and-forth' if is_back_and_forth(moves, wanted) else ''
