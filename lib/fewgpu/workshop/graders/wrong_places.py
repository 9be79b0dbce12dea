"""Wrong ways to place a model's stages, each under the misconception of exercise 04 that leads to it."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from fewgpu.workshop.graders.placed import Case

Place = Callable[[Case, nn.Sequential], list[nn.Sequential]]


def _cut(cuts: Callable[[Case], list[tuple[int, int]]],
         devices: Callable[[Case], list[torch.device]] = lambda case: case.devices) -> Place:
    """A wrong `place`: other cuts, or other devices."""
    return lambda case, model: [model[start:end].to(device) for (start, end), device in zip(cuts(case), devices(case))]


def _move_parameters(case: Case, model: nn.Sequential) -> list[nn.Sequential]:
    stages = [model[start:end] for start, end in case.cuts]
    for stage, device in zip(stages, case.devices):
        for parameter in stage.parameters():
            parameter.data = parameter.data.to(device)
    return stages


def _place_by_device(case: Case, model: nn.Sequential) -> list[nn.Sequential]:
    """A dict from a device to its stage: of two stages on one device the later stays."""
    return list(dict(zip(case.devices, case.placed(model))).values())


def _make_parameters_new(case: Case, model: nn.Sequential) -> list[nn.Sequential]:
    for layer in model:
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(parameter.detach()))
    return case.placed(model)


def _equal(case: Case) -> list[tuple[int, int]]:
    layers, stages = sum(case.balance), len(case.balance)
    size = layers // stages
    return [(k * size, layers if k == stages - 1 else (k + 1) * size) for k in range(stages)]


def _near(case: Case, left: int, right: int) -> list[tuple[int, int]]:
    return [(max(start + left, 0), max(end + right, 0)) for start, end in case.cuts]


WRONG_PLACES: list[tuple[str, Place]] = [
    ('not-moved', lambda case, model: [model[start:end] for start, end in case.cuts]),
    ('own-numbers', _cut(lambda case: case.cuts,
                         lambda case: [torch.device('cuda', k) for k in range(len(case.gpus))])),
    ('all-on-one', _cut(lambda case: case.cuts, lambda case: case.devices[:1] * len(case.gpus))),
    ('all-on-one', _cut(lambda case: case.cuts, lambda case: case.devices[-1:] * len(case.gpus))),
    ('all-on-one', _cut(lambda case: case.cuts, lambda case: [torch.device('cuda', 0)] * len(case.gpus))),
    ('from-start', _cut(lambda case: [(0, layers) for layers in case.balance])),
    ('multiples', _cut(lambda case: [(k * layers, (k + 1) * layers) for k, layers in enumerate(case.balance)])),
    ('boundaries', _cut(lambda case: list(zip((0, *case.balance), case.balance)))),
    ('boundaries', _cut(lambda case: list(zip(case.balance, (*case.balance[1:], sum(case.balance)))))),
    ('boundaries', _cut(lambda case: [(start, layers) for (start, _), layers in zip(case.cuts, case.balance)])),
    *[('one-off', _cut(lambda case, left=left, right=right: _near(case, left, right)))
      for left, right in [(0, -1), (0, 1), (-1, 0), (1, 0), (1, 1), (-1, -1)]],
    ('one-off', _cut(lambda case: [(start + k, end + k) for k, (start, end) in enumerate(case.cuts)])),
    ('one-off', _cut(lambda case: [(start - k, end - k) for k, (start, end) in enumerate(case.cuts)])),
    ('equal-stages', _cut(_equal)),
    ('shared-device', _place_by_device),
    ('copies', lambda case, model: case.placed(copy.deepcopy(model))),
    ('copies', lambda case, model: [stage if device == torch.device('cpu') else copy.deepcopy(stage)
                                    for stage, device in zip(case.placed(model), case.devices)]),
    ('copies', _make_parameters_new),
    ('buffers-left', _move_parameters),
]
