"""A model as a planner sees it: a chain of layers, and what a mini-batch costs in each."""

import json
import os
import tempfile
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from pathlib import Path

_FIGURES = {'ms': 'milliseconds of forward and backward', 'w_bytes': 'bytes of weights',
            'out_bytes': 'bytes of outputs'}


@dataclass(frozen=True)
class Layer:
    """One layer, for one mini-batch on one device: T_l, w_l and a_l of arXiv 1806.03377, section 3.3.

    seconds: forward and backward. weight_bytes: its parameters. output_bytes: its output activations, which
    cross to the next stage if a cut follows (and as many bytes of gradients come back).

    Raises ValueError where a figure is negative, infinite or not a number.
    """

    name: str
    seconds: float
    weight_bytes: float
    output_bytes: float

    def __post_init__(self) -> None:
        for figure in ('seconds', 'weight_bytes', 'output_bytes'):
            value = getattr(self, figure)
            if not isfinite(value) or value < 0:
                raise ValueError(f'layer {self.name}: {figure} is a figure of at least 0, not {value}')


class Chain:
    """Layers in order, with the sums that planners ask for.

    Layers are numbered from 0; ranges include their last layer. Raises ValueError without layers.
    """

    def __init__(self, layers: list[Layer] | tuple[Layer, ...]) -> None:
        if not layers:
            raise ValueError('a chain has at least one layer')
        self.layers = tuple(layers)
        self._seconds = _sums([layer.seconds for layer in self.layers])
        self._weights = _sums([layer.weight_bytes for layer in self.layers])
        self._outputs = _sums([layer.output_bytes for layer in self.layers])

    def __len__(self) -> int:
        return len(self.layers)

    def seconds(self, first: int, last: int) -> float:
        """Of forward and backward of these layers."""
        return self._seconds[last + 1] - self._seconds[first]

    def weight_bytes(self, first: int, last: int) -> float:
        """Of their parameters."""
        return self._weights[last + 1] - self._weights[first]

    def stash_bytes(self, first: int, last: int) -> float:
        """Of one weight version and of what these layers keep for one mini-batch: weights and outputs."""
        return self.weight_bytes(first, last) + self._outputs[last + 1] - self._outputs[first]


def _sums(figures: list[float]) -> list[float]:
    return list(accumulate(figures, initial=0.0))


def vgg16_chain() -> Chain:
    """VGG-16 in 40 operations, as PipeDream's authors profiled it (mini-batch 128, 224 x 224, one GPU)."""
    return read(Path(__file__).with_name('vgg16_chain.json'))


def read(path: str | Path) -> Chain:
    """The chain in a JSON file: a list of objects with `op` (a name), `ms`, `w_bytes` and `out_bytes`.

    Raises OSError if it cannot be read, ValueError, a sentence, if it holds anything else.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(f'{path} is not JSON: {error}') from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f'{path} is not a list of layers')
    return Chain([_layer(entry, f'{path}, layer {number}') for number, entry in enumerate(entries)])


def _layer(entry: object, where: str) -> Layer:
    if not isinstance(entry, dict):
        raise ValueError(f'{where} is not an object with {", ".join(_FIGURES)}')
    for key, meaning in _FIGURES.items():
        if isinstance(entry.get(key), bool) or not isinstance(entry.get(key), int | float):
            raise ValueError(f'{where}: {key}, the {meaning}, is a number, not {entry.get(key)!r}')
    try:
        return Layer(str(entry.get('op', '')), entry['ms'] / 1e3, entry['w_bytes'], entry['out_bytes'])
    except (ValueError, OverflowError) as error:   # (a whole number may be beyond all floats)
        raise ValueError(f'{where}: {error}') from None


def write(chain: Chain, path: str | Path) -> None:
    """Write a chain for `read`, all or nothing. Raises OSError if that cannot be."""
    path = Path(path)
    entries = [{'state': number, 'op': layer.name, 'ms': layer.seconds * 1e3, 'w_bytes': layer.weight_bytes,
                'out_bytes': layer.output_bytes} for number, layer in enumerate(chain.layers)]
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(handle, 'w', encoding='utf-8') as file:
            json.dump(entries, file, indent=1)
        os.chmod(new, 0o644)   # mkstemp's are its owner's alone
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
