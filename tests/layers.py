"""Small layers of every sort that a pipeline may meet, by the kind of value they take and give.

    rows      N x 4                      image    N x 4 x 3 x 3
    ids       N x 3, integers            states   what nn.LSTM returns: (output, (h, c))
    sequence  N x 3 x 4                  beside   (ids, sequence)
    nest      a dict with tensors, a tuple, a list, a mask, a number, None and a tensor of no
              dimensions
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrizations

WIDTH = 4


class Layer(NamedTuple):
    takes: str                       # kind of its input
    gives: str                       # kind of its output
    make: Callable[[], nn.Module]
    trait: str = ''                  # 'draws', 'batch norm', 'counts' (other buffers that change)
                                     # or 'bounds' (changes its parameters)


class Call(nn.Module):
    """A layer that is a function of its input, and of the modules it names."""

    def __init__(self, function: Callable, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, value: Any) -> Any:
        return self.function(value, **self._modules)


class Counting(nn.Module):
    """Adds how often it has run: a buffer that every forward changes, and every output shows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('runs', torch.zeros(()))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return value * (1 + self.runs / 8)


class Constrained(nn.Linear):
    """Bounds its weights in every forward, by giving the parameter new data."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.data.renorm(p=2, dim=0, maxnorm=0.5)
        return super().forward(value)


class Block(nn.Module):
    """A residual block as in a ResNet; its ReLUs work in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), _conv(),
                                  nn.BatchNorm2d(WIDTH))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(value) + value, inplace=True)


def _conv() -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1)


def _linear(out: int = WIDTH) -> nn.Module:
    return nn.Linear(WIDTH, out)


def _attention(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout, batch_first=True)


def _within(layer: nn.Module) -> nn.Module:
    return Call(lambda nest, layer: {**nest, 'x': layer(nest['x'])}, layer=layer)


def _pack(rows: torch.Tensor) -> dict:
    mask = rows.detach()[:, 0] > 0
    return {'x': rows * 1, 'pair': (rows * 2, [mask]), 'weight': rows.detach().abs(), 'number': 3,
            'nothing': None, 'point': rows.new_tensor(0.5)}


def _mix(nest: dict) -> dict:
    other, (mask,) = nest['pair']
    mixed = torch.where(mask[:, None], other, nest['x'] * nest['number'])
    return {**nest, 'x': mixed * nest['weight'] + nest['point']}


def _unpack(nest: dict) -> torch.Tensor:
    return nest['x'] + nest['pair'][0] * nest['point']


def _outputs(nest: dict) -> dict:
    other, (mask,) = nest['pair']
    return {'x': nest['x'], 'pair': (other, mask, [nest['weight']]), 'number': nest['number'],
            'nothing': nest['nothing'], 'count': mask.long()}


_SAME = {   # layers that give the kind they take, wherever the width is the last dimension
    'linear': _linear,
    'tanh': nn.Tanh,
    'relu_': lambda: nn.ReLU(inplace=True),
    'add_': lambda: Call(lambda x: x.add_(1)),
    'layer norm': lambda: nn.LayerNorm(WIDTH),
    'residual': lambda: Call(lambda x, inner: x + inner(x).tanh(), inner=_linear()),
    'twice': lambda: Call(lambda x, inner: inner(inner(x).tanh()), inner=_linear()),
    'identity': nn.Identity,
}

LAYERS: dict[str, Layer] = {
    **{f'{name} of {kind}': Layer(kind, kind, make)
       for name, make in _SAME.items() for kind in ('rows', 'sequence')},
    'dropout of rows': Layer('rows', 'rows', lambda: nn.Dropout(0.4), 'draws'),
    'dropout of sequence': Layer('sequence', 'sequence', lambda: nn.Dropout(0.4), 'draws'),
    'spectral norm': Layer('rows', 'rows', lambda: parametrizations.spectral_norm(_linear()),
                           'counts'),
    'spectral norm by hooks': Layer('rows', 'rows', lambda: nn.utils.spectral_norm(_linear()),
                                    'counts'),
    'constrained': Layer('rows', 'rows', lambda: Constrained(WIDTH, WIDTH), 'bounds'),
    'counting': Layer('rows', 'rows', Counting, 'counts'),
    'batch norm of rows': Layer('rows', 'rows', lambda: nn.BatchNorm1d(WIDTH), 'batch norm'),
    'to image': Layer('rows', 'image', lambda: nn.Sequential(
        _linear(9 * WIDTH), nn.Unflatten(1, (WIDTH, 3, 3)))),
    'to sequence': Layer('rows', 'sequence', lambda: nn.Sequential(
        _linear(3 * WIDTH), nn.Unflatten(1, (3, WIDTH)))),
    'pack': Layer('rows', 'nest', lambda: Call(_pack)),

    'conv': Layer('image', 'image', _conv),
    'relu_ of image': Layer('image', 'image', lambda: nn.ReLU(inplace=True)),
    'batch norm': Layer('image', 'image', lambda: nn.BatchNorm2d(WIDTH), 'batch norm'),
    'mean batch norm': Layer('image', 'image', lambda: nn.BatchNorm2d(WIDTH, momentum=None),
                             'batch norm'),
    'block': Layer('image', 'image', Block, 'batch norm'),
    'dropout of channels': Layer('image', 'image', lambda: nn.Dropout2d(0.4), 'draws'),
    'pool': Layer('image', 'rows', lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),

    'embedding': Layer('ids', 'sequence', lambda: nn.Embedding(7, WIDTH)),
    'bounded embedding': Layer('ids', 'sequence', lambda: nn.Embedding(7, WIDTH, max_norm=1.0),
                               'bounds'),
    'embedding beside': Layer('ids', 'beside', lambda: Call(
        lambda ids, table: (ids, table(ids)), table=nn.Embedding(7, WIDTH))),
    'skip of beside': Layer('beside', 'sequence', lambda: Call(
        lambda both, table: both[1] + table(both[0]), table=nn.Embedding(7, WIDTH))),

    'attention': Layer('sequence', 'sequence', lambda: _attention(0.0)),
    'attention with dropout': Layer('sequence', 'sequence', lambda: _attention(0.3), 'draws'),
    'lstm': Layer('sequence', 'states', lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    'lstm with dropout': Layer('sequence', 'states', lambda: nn.LSTM(
        WIDTH, WIDTH, 2, batch_first=True, dropout=0.3), 'draws'),
    'output of lstm': Layer('states', 'sequence', lambda: Call(
        lambda states: states[0] + states[1][0][-1][:, None])),   # c gets no gradient
    'mean': Layer('sequence', 'rows', lambda: Call(lambda x: x.mean(1))),

    'linear in nest': Layer('nest', 'nest', lambda: _within(_linear())),
    'relu_ in nest': Layer('nest', 'nest', lambda: _within(nn.ReLU(inplace=True))),
    'dropout in nest': Layer('nest', 'nest', lambda: _within(nn.Dropout(0.4)), 'draws'),
    'mix': Layer('nest', 'nest', lambda: Call(_mix)),
    'unpack': Layer('nest', 'rows', lambda: Call(_unpack)),
    'outputs': Layer('nest', 'end', lambda: Call(_outputs)),
}

IN_PLACE = tuple(name for name in LAYERS if 'relu_' in name or 'add_' in name)
KEPT = tuple(name for name in LAYERS   # the result is kept for the backward: not to be changed
             if 'relu_' in name or 'tanh' in name or name == 'block')
PASSED_ON = tuple(name for name in LAYERS   # in evaluation at least, the result is the input
                  if 'identity' in name or 'dropout' in name)
ENDS = {'nest': 'outputs', 'states': 'output of lstm', 'ids': 'embedding'}   # to leave a model


def batch(kind: str, rows: int, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """A mini-batch to start with, of kind rows, image, sequence, ids or nest."""
    if kind == 'ids':
        return torch.randint(7, (rows, 3), generator=generator)
    shape = {'image': (WIDTH, 3, 3), 'sequence': (3, WIDTH)}.get(kind, (WIDTH,))
    x = torch.randn(rows, *shape, generator=generator, dtype=dtype)
    return x if kind != 'nest' else _pack(x)
