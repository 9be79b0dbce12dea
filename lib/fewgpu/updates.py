"""Updates that wait: until other mini-batches have added their gradients, or until all stages have agreed."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.loss_scale import LossScale
from fewgpu.schedule import Schedule, staleness


def verify_can_wait(layout: Schedule, update: bool) -> None:
    """Raises ValueError if gradients are to gather under a schedule that updates within a step."""
    if not update and layout.update_every is not None:
        raise ValueError(f'{layout.name} updates the weights within a step, and cannot wait for more mini-batches: '
                         f'choose more chunks, or a schedule that flushes, as 1f1b')


def verify_meets_newest(schedule: Schedule, context: Context, devices: Iterable[Device]) -> None:
    """Raises ValueError if a schedule wants newer weights in a backward than in its forward, and the forward leaves
    autocast's copies of them behind, which no update reaches: without a word the backward would use old weights.
    (Autocast around the step is seen, not that which a layer switches on in its own forward.)"""
    casts = {kind for kind, _ in context.autocast} & {device.torch.type for device in devices}
    if not casts or schedule.weights not in ('unstashed', 'corrected'):
        return
    for (stage, i), late in sorted(staleness(schedule).items()):
        if late and schedule.keeps(stage, i) == 'graph':
            raise ValueError(f'{schedule.name} takes newer weights in the backward of micro-batch {i} on stage {stage} '
                             f"than in its forward, and under autocast a layer keeps the copies that it took: pass "
                             f"checkpoint='always', which makes them anew")


@contextlib.contextmanager
def updating(optimizers: Iterable[Any], loss_scale: LossScale | None, agree: Callable[[bool], bool], *, update: bool,
             within: bool) -> Iterator[bool]:
    """Inside, a schedule runs, which updates `within` itself or at its end; yields whether stages are to update in it.

    Otherwise they leave gradients in the parameters' `.grad`, and here all optimizers use them afterwards, or none
    does. An error drops what has gathered. `agree` says whether all processes say yes, and all call it.
    """
    at_once = update and (loss_scale is None or within)
    try:
        yield at_once
        if update and not at_once:
            together(optimizers, loss_scale, agree)
        elif update and loss_scale is not None:
            loss_scale.update(overflow=not agree(not loss_scale.take_left_out()))
    except BaseException:
        if loss_scale is not None:
            loss_scale.take_left_out()
        _drop(optimizers)
        raise


@torch.no_grad()
def together(optimizers: Iterable[Any], loss_scale: LossScale | None, agree: Callable[[bool], bool]) -> None:
    """Let all optimizers use the gradients in their parameters' `.grad`, if all are finite in all processes; then the
    gradients are dropped, and the scale changes."""
    optimizers = [*optimizers]
    gradients = [parameter.grad for optimizer in optimizers for group in optimizer.param_groups
                 for parameter in group['params'] if parameter.grad is not None]
    finite = loss_scale is None or agree(loss_scale.unscale(gradients))
    try:
        for optimizer in optimizers if finite else ():
            optimizer.step()
    except BaseException as error:
        error.add_note('the weights of some stages have been updated in this step, those of others not: load a '
                       'checkpoint before you go on')
        raise
    _drop(optimizers)
    if loss_scale is not None:
        loss_scale.update(overflow=not finite)


def _drop(optimizers: Iterable[Any]) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
