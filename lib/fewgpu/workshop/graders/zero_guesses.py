"""What misconceptions about ZeRO would answer, for the grader of exercise 13."""

from collections.abc import Callable
from typing import Any

import torch

from fewgpu.workshop.graders.zero_layers import Model, mean_pieces
from fewgpu.workshop.graders.zero_step import Case, Snapshots, plain, played, without_rest
from fewgpu.workshop.practice.dense import Dense

Truth = Callable[[int, int, int], float]


def _shared(whole: tuple[float, ...], shared: tuple[float, ...]) -> Callable[[Truth, int, int, int], float]:
    """An answer by the bytes a parameter that are whole, and those that are shared out, in every stage."""
    return lambda truth, stage, parameters, ranks: parameters * (whole[stage] + shared[stage] / ranks)


BYTES: list[tuple[str, Callable[[Truth, int, int, int], float]]] = [
    ('no-copy', _shared((12, 4, 2, 0), (0, 8, 10, 12))),
    ('single-precision', _shared((16, 8, 4, 0), (0, 8, 12, 16))),
    ('single-precision', _shared((20, 8, 4, 0), (0, 12, 16, 20))),
    ('other-order', _shared((16, 14, 12, 0), (0, 2, 4, 16))),
    ('other-order', _shared((16, 14, 2, 0), (0, 2, 14, 16))),
    ('other-order', _shared((16, 4, 2, 0), (0, 12, 12, 12))),
    ('one-thing', _shared((16, 4, 14, 14), (0, 12, 2, 2))),
    ('all-shared', _shared((16, 0, 0, 0), (0, 16, 16, 16))),
    ('one-stage-off', _shared((4, 2, 0, 0), (12, 14, 16, 16))),
    ('one-stage-off', _shared((16, 16, 4, 2), (0, 0, 12, 14))),
    ('all-ranks', lambda truth, stage, parameters, ranks: ranks * truth(stage, parameters, ranks)),
]
"""By stage: of 16 bytes a parameter."""


def _unchanged(case: Case) -> Snapshots:
    return [[case.weights() for _ in case.gradients] for _ in range(case.ranks)]


STEPS: list[tuple[str, Callable[[Case], Snapshots]]] = [
    ('unchanged', _unchanged),
    ('sum', lambda case: plain(case, lambda ranks: 1.0)),
    ('divides-twice', lambda case: plain(case, lambda ranks: 1 / ranks**2)),
    ('gathers-too-early', lambda case: played(case, early=True)),
    ('rest-dropped', without_rest),
    ('fresh-state', lambda case: played(case, fresh=True)),
    ('accumulates', lambda case: played(case, adds=True)),
    ('own-gradient', lambda case: played(case, local=True, mean=False)),
    ('own-gradient', lambda case: played(case, local=True)),
    ('no-gather', lambda case: played(case, gathers=False)),
    *(('wrong-owner', lambda case, owner=owner: played(case, owner=owner)) for owner in (
        lambda rank, ranks: (rank + 1) % ranks, lambda rank, ranks: (rank - 1) % ranks,
        lambda rank, ranks: ranks - 1 - rank, lambda rank, ranks: 0)),
]


def _outputs(model: Model, handed_on: bool = True) -> list[torch.Tensor]:
    answer = []
    for rank in range(model.ranks):
        x = output = model.batch(rank)[0]
        for layer, weights in zip(model.layers, model.weights()):
            output = layer.forward(weights, output if handed_on else x)
        answer.append(output)
    return answer


FORWARDS: list[tuple[str, Callable[[Model], Any]]] = [
    ('not-handed-on', lambda model: _outputs(model, handed_on=False)),
]


def _pieces(model: Model, *, outputs_kept: bool = False, handed_on: bool = True, last_first: bool = True,
            shared: bool = True) -> list[list[torch.Tensor]]:
    """What a backward with a misconception returns. Raises ValueError or RuntimeError where shapes do not fit."""
    of_ranks = []
    for rank in range(model.ranks):
        x, gradient = model.batch(rank)
        inputs: list[torch.Tensor] = []
        for layer, weights in zip(model.layers, model.weights()):
            before, x = x, layer.forward(weights, x)
            inputs.append(x if outputs_kept else before)
        turns = list(zip(model.layers, model.weights(), inputs))
        mine = _backward(turns[::-1] if last_first else turns, gradient, handed_on)
        of_ranks.append(mine[::-1] if last_first else mine)
    if not shared:
        return [[model.cut(each)[rank] for each in mine] for rank, mine in enumerate(of_ranks)]
    total = [model.cut(sum(each) / model.ranks) for each in zip(*of_ranks)]
    return [[pieces[rank] for pieces in total] for rank in range(model.ranks)]


def _backward(turns: list[tuple[Dense, torch.Tensor, torch.Tensor]], gradient: torch.Tensor,
              handed_on: bool) -> list[torch.Tensor]:
    answer = []
    for layer, weights, x in turns:
        before, own = layer.backward(weights, x, gradient)
        gradient = before if handed_on else gradient
        answer.append(own)
    return answer


def _whole(model: Model, padding: bool, scale: Callable[[int], float]) -> list[list[torch.Tensor]]:
    total = [sum(each) * scale(model.ranks) for each in zip(*model.gradients())]
    return [[torch.cat(model.cut(each)) if padding else each for each in total] for _ in range(model.ranks)]


def _without_padding(model: Model) -> list[list[torch.Tensor]]:
    return [[piece[:max(layer.numbers - rank * len(piece), 0)] for layer, piece in zip(model.layers, pieces)]
            for rank, pieces in enumerate(mean_pieces(model))]


BACKWARDS: list[tuple[str, Callable[[Model], list[list[torch.Tensor]]]]] = [
    ('sum', lambda model: mean_pieces(model, lambda ranks: 1.0)),
    ('divides-twice', lambda model: mean_pieces(model, lambda ranks: 1 / ranks**2)),
    ('own-gradient', lambda model: _pieces(model, shared=False)),
    ('own-gradient', lambda model: [[piece / model.ranks for piece in each] for each in _pieces(model, shared=False)]),
    ('reversed', lambda model: [each[::-1] for each in mean_pieces(model)]),
    *(('not-scattered', lambda model, padding=padding, scale=scale: _whole(model, padding, scale))
      for padding in (False, True) for scale in (lambda ranks: 1 / ranks, lambda ranks: 1.0)),
    ('padding-lost', _without_padding),
    ('not-handed-on', lambda model: _pieces(model, handed_on=False)),
    ('outputs-kept', lambda model: _pieces(model, outputs_kept=True)),
    ('forward-order', lambda model: _pieces(model, last_first=False)),
]
