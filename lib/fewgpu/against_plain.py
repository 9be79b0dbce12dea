"""One step of an engine against the plain model: the loss, and how long and which way the gradients are.

    plain = copy.deepcopy(model)                       # before the engine has it
    loss = pipeline.step(x, y, update=False)           # so that gradients stay in .grad
    gradients = {name: each.grad for name, each in pipeline.module.named_parameters()}
    print(against_plain(plain, loss_fn, x, y, loss, gradients, chunks=4))

A loss that is scaled wrongly trains, with another learning rate than the one that was asked for. The ratio says by how
much, and so, often, what was forgotten: gradients are 4 times the plain ones, and there are 4 micro-batches.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fewgpu.microbatch import rows_of

SLACK = 0.02   # what rounding, or dropout's other masks in a large batch, may change; factors to be found are 2 or more


def against_plain(plain: nn.Module, loss_fn: Callable[[Any, Any], torch.Tensor], x: Any, y: Any, loss: Any,
                  gradients: Mapping[str, torch.Tensor | None], *, chunks: int = 1, ranks: int = 1) -> str:
    """What is wrong with an engine's `loss` and `gradients` of the mini-batch (x, y), in a sentence; '' if nothing is.

    Arguments:
        plain: a copy of the model with the weights that the engine had before the step; it is not changed.
        loss_fn: from (output, target) of the whole mini-batch to the loss that is to be minimised.
        loss: what the engine returned.
        gradients: of the engine, by the names of the plain model's parameters; None counts as zeros.
        chunks, ranks: into how many micro-batches and over how many ranks the mini-batch was cut.

    Batch norm and dropout make an engine's step another one: compare in evaluation mode. Raises ValueError if the names
    are not those of the plain model.
    """
    model = copy.deepcopy(plain)
    learned = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if unknown := {*learned} ^ {*gradients}:
        raise ValueError(f'gradients are given by the names of the plain model\'s learned parameters; '
                         f'{sorted(unknown)[0]!r} is in one of both only')
    with torch.enable_grad():
        right = loss_fn(model(x), y)
        right.backward()
    own = _in_a_row(learned, gradients)
    plains = _in_a_row(learned, {name: each.grad for name, each in learned.items()})
    if said := _not_finite(own, plains, loss, right):
        return said
    ratio, of_losses = _ratio(own.norm(), plains.norm()), _ratio(loss, right)
    rows = rows_of(x)
    counts = {'the number of micro-batches': chunks, 'the number of ranks': ranks,
              'the rows of a micro-batch': rows / chunks, 'the rows of the mini-batch': rows}
    if not _is(ratio, 1.0):
        loss_too = ', and so is the loss' if _is(of_losses, ratio) else ''
        return f'gradients are {ratio:.3g} times the plain model\'s{loss_too}{_why(ratio, counts)}'
    cosine = float(own @ plains / (own.norm() * plains.norm())) if plains.norm() else 1.0
    if cosine < 1 - SLACK:
        return (f'gradients are as long as the plain model\'s, but point elsewhere (cosine {cosine:.2f}): look for '
                f'rows or targets in another order, or for weights that are not the plain ones')
    if not _is(of_losses, 1.0):
        return f'gradients are right, but the loss is {of_losses:.3g} times the plain model\'s{_why(of_losses, counts)}'
    return ''


def _in_a_row(learned: Mapping[str, nn.Parameter], gradients: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    """All of them as one vector on the host."""
    each = [torch.zeros_like(parameter) if gradients[name] is None else gradients[name]
            for name, parameter in learned.items()]
    return torch.cat([gradient.detach().cpu().double().reshape(-1) for gradient in each])


def _not_finite(own: torch.Tensor, plains: torch.Tensor, loss: Any, right: Any) -> str:
    """Where there are infinities or NaNs, which have no ratio."""
    is_finite = {what: bool(torch.as_tensor(each).isfinite().all()) for what, each in (
        ('plain', plains), ('plain loss', right), ('gradients', own), ('loss', loss))}
    if not is_finite['plain'] or not is_finite['plain loss']:
        return ('the plain model\'s own loss or gradients are not finite (infinite, or NaN): compare with weights and '
                'a mini-batch for which they are')
    for what in ('gradients', 'loss'):
        if not is_finite[what]:
            return (f'there are infinities or NaNs in the {what}, and none in the plain model\'s: look for a number '
                    f'that is too large for its dtype, or for memory that nobody has filled')
    return ''


def _ratio(own: Any, plain: Any) -> float:
    own, plain = (float(torch.as_tensor(each).detach()) for each in (own, plain))
    return own / plain if plain else 1.0 if not own else math.inf


def _is(ratio: float, wanted: float) -> bool:
    return abs(ratio - wanted) <= SLACK * wanted


def _why(ratio: float, counts: Mapping[str, float]) -> str:
    """Which counts explain it, and what to do."""
    if names := _fitting(ratio, counts):
        return (f': that is {names}: something is added up that is to be averaged; weight each part by its share of '
                f'the rows')
    if ratio and (names := _fitting(1 / ratio, counts)):
        return (f': that is 1 over {names}: the loss is scaled twice; the engine weights the parts itself, so leave '
                f'your own division out')
    return ': all parts together must weigh 1, so look where the loss is scaled'


def _fitting(ratio: float, counts: Mapping[str, float]) -> str:
    return ', or '.join(f'{name}, {count:g}' for name, count in counts.items() if count != 1 and _is(ratio, count))
