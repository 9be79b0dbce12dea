"""Long skips: a layer saves its input under a name, and a later layer loads it and uses it beside its own.

    nn.Sequential(a, Save('s'), b, c, Load('s'), d)

        a ──┬──► b ──► c ──► cat ──► d        plain: they meet in a store of the thread
            └────────────────►┘

    stage 0      stage 1      stage 2         cut: a message of its own goes straight from the stage
    a, Save ───► b ─────────► c, Load, d      that saves to the stage that loads, its gradient back
       └────────── skip s ──────►┘

With several loads a skip goes from stage to stage that loads it. The gradient comes back the same way,
and every stage adds its own part to what has come: so parts add up in the plain model's order.
With skips='through' it also stops at every stage in between, as if all were a part of the activation.

The idea is that of torchgpipe's portals (Kim et al. 2020, arXiv 2004.09910, section 3.3, remembered).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import inf
from typing import Any, NamedTuple

import torch
from torch import nn

from fewgpu.schedule import Skip

ROUTES = ('straight', 'through')
COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    'cat': lambda x, skip: torch.cat([x, skip], dim=1),
    'add': torch.add,
}
LONGEST = 200   # bytes of a name: it travels with the message


@dataclass
class _Saved:
    name: str
    tensor: torch.Tensor
    loads: float           # that are still to come
    by: 'Save | None'      # None: it came from another stage

    def __post_init__(self) -> None:
        self._version = _version(self.tensor)

    def intact(self) -> torch.Tensor:
        if _version(self.tensor) != self._version:
            raise RuntimeError(f'the skip {self.name!r} was changed in place after it had been saved: let '
                               f'the layer after Save({self.name!r}) work on a copy (inplace=False)')
        return self.tensor


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class _Thread(threading.local):
    def __init__(self) -> None:
        self.saved: list[_Saved] = []
        self.is_exact = False   # does `saved` belong to one forward alone?


_thread = _Thread()


@contextlib.contextmanager
def own_skips() -> Iterator[list[_Saved]]:
    """Inside, one forward runs: it finds what it saved itself, and leaves nothing behind."""
    before, saved = (_thread.saved, _thread.is_exact), []
    _thread.saved, _thread.is_exact = saved, True
    try:
        yield saved
    finally:
        _thread.saved, _thread.is_exact = before
        saved.clear()   # the traceback of an error would keep it


class Save(nn.Module):
    """Passes its input, a tensor, on, and remembers it under `name` for `loads` layers `Load(name)`.

    Raises TypeError for anything but a tensor, ValueError for a name that is still to be loaded.
    """

    def __init__(self, name: str, loads: int = 1) -> None:
        super().__init__()
        self.name, self.loads = _verified(name), loads
        if not (isinstance(loads, int) and loads >= 1):
            raise ValueError(f'a skip is loaded at least once, not {loads!r} times')

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f'Save({self.name!r}) takes one tensor, not a {type(x).__name__}: put it behind '
                            f'a layer that returns one')
        saved = _thread.saved
        if _thread.is_exact and any(one.name == self.name for one in saved):
            raise _twice(self.name)
        saved[:] = [one for one in saved if one.by is not self]   # left by a forward that failed half-way
        saved.append(_Saved(self.name, x, self.loads, self))
        # A node of its own in the graph: gradients of what follows then add up before that of the skip
        # is added, in the plain model as behind a cut, so that both are equal to the bit.
        return x.view_as(x)

    def extra_repr(self) -> str:
        return repr(self.name) + f', loads={self.loads}' * (self.loads > 1)


class Load(nn.Module):
    """Combines its input with the skip of that name.

    `combine` is 'cat' (along dimension 1: channels), 'add', or a function of input and skip; a subclass
    may instead have a `merge` of its own. The skip must not be changed in place.

    Raises ValueError if nothing of that name was saved before.
    """

    def __init__(self, name: str, combine: str | Callable[[Any, torch.Tensor], Any] = 'cat') -> None:
        super().__init__()
        self.name, self.combine = _verified(name), combine
        if not callable(combine) and combine not in COMBINE:
            raise ValueError(f'combine is {" or ".join(map(repr, COMBINE))}, or a function of the input '
                             f'and the skip, not {combine!r}')

    def forward(self, x: Any) -> Any:
        return self.merge(x, self._take())

    def merge(self, x: Any, skip: torch.Tensor) -> Any:
        """What the layer returns."""
        return (self.combine if callable(self.combine) else COMBINE[self.combine])(x, skip)

    def _take(self) -> torch.Tensor:
        saved = _thread.saved
        for position in reversed(range(len(saved))):
            one = saved[position]
            if one.name == self.name:
                one.loads -= 1
                if not one.loads:
                    del saved[position]
                return one.intact()
        raise _missing(self.name)

    def extra_repr(self) -> str:
        return f'{self.name!r}, {self.combine}'


class SkipSequential(nn.Sequential):
    """An nn.Sequential with skips, whose forwards have nothing to do with each other.

    In a plain nn.Sequential a forward that fails leaves its skips in memory until the next one, and two
    layers that save the same name are not noticed: the newest counts.

    Raises ValueError if its skips do not match.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with own_skips() as saved:
            y = super().__call__(*args, **kwargs)
            if saved:
                raise _unused(saved[0].name)
            return y


class WithSkips(nn.Module):
    """A stage that receives skips, or sends them on, beside what every stage receives and sends.

    From ({name: skip}, x), or x if it imports none, to ({name: skip}, y), or y if it exports none.
    (The skips come first, so that their gradients are the first ones, whatever x consists of.)
    """

    def __init__(self, partition: nn.Module, imports: Sequence[str], exports: Sequence[str]) -> None:
        super().__init__()
        self.partition, self.exports = partition, exports
        self.imports = {name: self._loads(name) for name in imports}

    def _loads(self, name: str) -> float:
        """How often the partition loads what comes from an earlier stage."""
        parts = [part for part in self.partition.modules()
                 if isinstance(part, (Save, Load)) and part.name == name]
        loads = list(takewhile(lambda part: isinstance(part, Load), parts))
        return inf if loads == parts and name in self.exports else len(loads)   # inf: it also goes on

    def forward(self, value: Any) -> Any:
        skips, x = value if self.imports else ({}, value)
        with own_skips() as saved:
            saved += [_Saved(name, skip, self.imports[name], None) for name, skip in skips.items()]
            y = self.partition(x)
            newest = {one.name: one for one in saved}
            exported = {name: newest[name].intact() for name in self.exports}
        return (exported, y) if self.exports else y


def wrapped(partition: nn.Module, stage: int, skips: Iterable[Skip]) -> nn.Module:
    """The stage as it runs: with a store of its own, if there are skips in it or through it."""
    imports = [skip.name for skip in skips if skip.stage == stage]
    exports = [skip.name for skip in skips if skip.source == stage]
    has_own = any(isinstance(part, (Save, Load)) for part in partition.modules())
    return WithSkips(partition, imports, exports) if imports or exports or has_own else partition


class Pair(NamedTuple):
    """A skip of a sequence of layers: the positions of the layers that save and load it."""

    name: str
    save: int
    loads: list[int]


def verify_skips(module: nn.Sequential) -> list[Pair]:
    """The skips from layer to layer. Those inside one layer are none of the sequence's.

    Raises ValueError if one is loaded before it is saved, never (or not as often as it says), or saved
    twice before it is loaded, or if only one of its ends is inside another layer.
    """
    pairs: list[Pair] = []
    open_pairs: dict[str, tuple[Pair, int]] = {}   # name -> its pair, and the loads still to come
    for position, layer in enumerate(module):
        for part in layer.modules():
            if isinstance(part, Save):
                if part.name in open_pairs:
                    raise _twice(part.name)
                pair = Pair(part.name, position, [])
                open_pairs[part.name] = pair, part.loads
                pairs.append(pair)
            elif isinstance(part, Load):
                if part.name not in open_pairs:
                    raise _missing(part.name)
                pair, left = open_pairs.pop(part.name)
                if left > 1:
                    open_pairs[part.name] = pair, left - 1
                if part is not layer and pair.save != position:
                    raise _half_inside(part.name)
                pair.loads.append(position)
        for name, (pair, _) in open_pairs.items():
            if pair.save == position and not isinstance(layer, Save):
                raise _half_inside(name)
    for name in open_pairs:
        raise _unused(name)
    return [pair for pair in pairs if pair.loads[-1] > pair.save]


def routes(module: nn.Sequential, balance: Sequence[int], how: str = 'straight') -> tuple[Skip, ...]:
    """How the skips that cross a cut travel: a Skip for each hop from stage to stage.

    Raises ValueError as `verify_skips`, or if there is no such way.
    """
    if how not in ROUTES:
        raise ValueError(f'skips go {" or ".join(map(repr, ROUTES))}, not {how!r}')
    stage_of = [stage for stage, layers in enumerate(balance) for _ in range(layers)]
    hops: list[Skip] = []
    for name, save, loads in verify_skips(module):
        source, *uses = sorted({stage_of[position] for position in (save, *loads)})
        stops = [source, *uses] if how == 'straight' else range(source, max(uses, default=source) + 1)
        hops += [Skip(name, here, there) for here, there in pairwise(stops)]
    return tuple(hops)


def _verified(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name.encode()) <= LONGEST:
        raise ValueError(f'the name of a skip is a text of 1 to {LONGEST} bytes, not {name!r}')
    return name


def _missing(name: str) -> ValueError:
    return ValueError(f'Load({name!r}) finds no skip of that name: put a Save({name!r}) before it (and '
                      f'loads=... if several layers load it)')


def _unused(name: str) -> ValueError:
    return ValueError(f'the skip {name!r} is saved and then not loaded as often as it says: add '
                      f'Load({name!r}), or leave the Save out')


def _twice(name: str) -> ValueError:
    return ValueError(f'the skip {name!r} is saved again before it has been loaded: give each its own name')


def _half_inside(name: str) -> ValueError:
    return ValueError(f'the skip {name!r} has one end inside a layer, and would be cut off there: make Save '
                      f'and Load layers of the sequence itself')
