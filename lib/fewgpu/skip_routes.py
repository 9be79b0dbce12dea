"""How long skips travel between the stages of a pipeline (the layers: `fewgpu.skip`).

    stage 0      stage 1      stage 2         A message of its own goes straight from the stage that
    a, Save ───► b ─────────► c, Load, d      saves to the stage that loads, and its gradient back.
       └────────── skip s ──────►┘

With several loads a skip goes from stage to stage that loads it. The gradient comes back the same way,
and every stage adds its own part to what has come: so parts add up in the plain model's order.
With skips='through' it also stops at every stage in between, as if all were a part of the activation.

The idea is that of torchgpipe's portals (Kim et al. 2020, arXiv 2004.09910, section 3.3, remembered).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from math import inf
from typing import Any, NamedTuple

from torch import nn

from fewgpu.schedule import Skip
from fewgpu.skip import Load, Save, Waiting, not_loaded, not_saved, own_skips, saved_twice

ROUTES = ('straight', 'through')


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
            saved += [Waiting(name, skip, self.imports[name]) for name, skip in skips.items()]
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
                    raise saved_twice(part.name)
                pair = Pair(part.name, position, [])
                open_pairs[part.name] = pair, part.loads
                pairs.append(pair)
            elif isinstance(part, Load):
                if part.name not in open_pairs:
                    raise not_saved(part.name)
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
        raise not_loaded(name)
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


def held_together(module: nn.Sequential) -> list[int]:
    """The finest balance in which no skip goes from one part to another. Raises ValueError as `verify_skips`."""
    passed = {k for pair in verify_skips(module) for k in range(pair.save + 1, pair.loads[-1] + 1)}
    counts: list[int] = []
    for k in range(len(module)):
        if k in passed:   # a skip comes here from the layer before
            counts[-1] += 1
        else:
            counts.append(1)
    return counts


def verify_skips_stay(module: nn.Sequential, balance: Sequence[int], part: str, remedy: str) -> None:
    """For engines whose parts are computed one at a time. Raises ValueError, which says the remedy, for a skip from
    one part to another, and as `verify_skips`."""
    for skip in routes(module, balance):
        raise ValueError(f'the skip {skip.name!r} goes from {part} {skip.source} to {part} {skip.stage}, and only what '
                         f'goes from one to the next is carried here: {remedy}, or use Pipeline or GPipe, which carry '
                         f'skips')


def _half_inside(name: str) -> ValueError:
    return ValueError(f'the skip {name!r} has one end inside a layer, and would be cut off there: make Save '
                      f'and Load layers of the sequence itself')
