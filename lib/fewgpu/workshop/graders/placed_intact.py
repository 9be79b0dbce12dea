"""What `place` has to leave as it is, for the grader of exercise 04: the layers, and that a stage can be called."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.graders.placed import GPUS, Case
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import close
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.gpus import pretend_gpus


def check_intact(work: Work, case: Case) -> None:
    """Raise Failure if a layer is not in the state it was in, or if the stages in turn are not the model."""
    with pretend_gpus(GPUS):
        model = case.model()
        x, wanted = case.batch(model)[0], case.model()
        _mark(model), _mark(wanted)
        before = _states(model)
        stages = list(work.place(model, list(case.balance), case.devices))
        for number, (was, now) in enumerate(zip(before, _states(model))):
            if changed := [what for what in was if was[what] != now[what]]:
                what = changed[0]
                raise Failure(misconception='layers-changed', lines=work.definition('place'),
                              case=f'{case}\n{what} of layer {number}\nyours     {now[what]}\nexpected  {was[what]}')
        check_callable(work, stages, str(case))
        for stage, device in zip(stages, case.devices):
            x = stage(x.to(device))
        if not close(x.detach().cpu(), wanted(case.batch(wanted)[0]).detach()):
            raise Failure('Called one after the other, the stages do not give what the model gives.', case=str(case),
                          lines=work.definition('place'))


def check_callable(work: Work, stages: Sequence[Any], case: str) -> None:
    for stage in stages:
        if isinstance(stage, (list, tuple, nn.ModuleList, nn.ModuleDict)):
            raise Failure(f'Yours is of the type {type(stage).__name__}.', misconception='not-callable', case=case,
                          lines=work.definition('place'))


def _mark(model: nn.Sequential) -> None:
    """The layers are not all in one state: one is in eval mode, and a parameter is frozen."""
    model[-1].eval()
    model[0].bias.requires_grad_(False)


def _states(model: nn.Sequential) -> list[dict[str, Any]]:
    return [{'the mode (training)': layer.training,
             **{f'{name}.requires_grad': parameter.requires_grad for name, parameter in layer.named_parameters()},
             **{f'the dtype of {name}': tensor.dtype for name, tensor in layer.state_dict().items()
                if isinstance(tensor, torch.Tensor)}} for layer in model]
