"""For the grader of exercise 15: chains of layers to cut into shards, what keeps a cut from fitting, and wrong cuts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from random import Random
from typing import Any


@dataclass(frozen=True)
class Chain:
    """Layers, and the memory of a device: bytes."""

    weights: tuple[int, ...]
    working: tuple[int, ...]
    memory: int
    buffer: int

    @property
    def room(self) -> int:
        return self.memory - self.buffer

    @property
    def fits(self) -> bool:
        """Does each layer fit alone?"""
        return all(weight <= self.buffer and weight + work <= self.room
                   for weight, work in zip(self.weights, self.working))

    def __str__(self) -> str:
        return f'cut({list(self.weights)}, {list(self.working)}, memory={self.memory}, buffer={self.buffer})'


def chains(random: Random) -> list[Chain]:
    """Whose layers all fit alone, smallest first."""
    fixed = [Chain((2,), (1,), 6, 2), Chain((1, 1), (1, 1), 6, 2), Chain((1, 1), (1, 1), 5, 2),
             Chain((2, 2), (1, 0), 9, 3), Chain((1, 1, 1), (3, 0, 0), 8, 3), Chain((2, 2, 1, 3), (1, 1, 1, 1), 10, 4),
             Chain((2, 2, 1, 3), (1, 1, 1, 1), 10, 3), Chain((1, 1, 1, 4), (0, 0, 0, 0), 8, 4),
             Chain((0, 3, 0, 0), (2, 0, 2, 2), 7, 3), Chain((1,) * 7, (2,) * 7, 14, 5)]
    return fixed + _drawn(random, 40, lambda chain: chain.fits)


def too_large(random: Random) -> list[Chain]:
    """Of which one layer does not fit alone: because of its weights, or of all that it needs."""
    fixed = [Chain((3,), (0,), 9, 2), Chain((1,), (4,), 6, 2), Chain((1, 3), (1, 0), 9, 2), Chain((1, 1), (1, 4), 6, 2)]
    return fixed + _drawn(random, 20, lambda chain: not chain.fits)


def _drawn(random: Random, count: int, wanted: Callable[[Chain], bool]) -> list[Chain]:
    chains: list[Chain] = []
    while len(chains) < count:
        layers = random.randrange(2, 10)
        weights = tuple(random.randrange(1, 9) for _ in range(layers))
        working = tuple(random.randrange(9) for _ in range(layers))
        chain = Chain(weights, working, random.randrange(18, 50), random.randrange(7, 25))
        chains += [chain] * wanted(chain)
    return sorted(chains, key=lambda chain: len(chain.weights))


def unfit(chain: Chain, got: Any) -> str:
    """What keeps an answer from being a cut into shards that fit; '' if nothing does."""
    if not isinstance(got, list) or not all(isinstance(each, Integral) for each in got):
        return 'The answer is no list of whole numbers, one for each shard.'
    if min(got, default=0) < 1:
        return 'A shard has at least one layer.'
    if sum(got) != len(chain.weights):
        return f'The shards have {sum(got)} layers together; the model has {len(chain.weights)}.'
    for number, (stored, used) in enumerate(filled(chain, got)):
        if used > chain.room:
            return f'Shard {number} needs {used} bytes, and {chain.room} are there beside the buffer.'
        if stored > chain.buffer:
            return f'Shard {number} has {stored} bytes of weights, and the buffer has {chain.buffer}.'
    return ''


def not_fewest(chain: Chain, got: Any) -> str:
    if wrong := unfit(chain, got):
        return wrong
    fewest = len(next(fitting(chain)))
    return '' if len(got) == fewest else f'It has {len(got)} shards; {fewest} {"is" if fewest == 1 else "are"} enough.'


def fitting(chain: Chain) -> Iterator[list[int]]:
    """All cuts that fit, by trying all, those into fewest shards first. `chain` is short."""
    layers = len(chain.weights)
    cuts = [[end - start for start, end in pairwise([0, *(k + 1 for k in range(layers - 1) if bits >> k & 1), layers])]
            for bits in range(2**(layers - 1))]
    return (each for each in sorted(cuts, key=len) if not unfit(chain, each))


def filled(chain: Chain, got: list[int]) -> list[tuple[int, int]]:
    """Of every shard: its bytes of weights, and all its bytes."""
    ends = [sum(got[:number]) for number in range(len(got) + 1)]
    return [(sum(chain.weights[start:end]), sum(chain.weights[start:end]) + sum(chain.working[start:end]))
            for start, end in pairwise(ends)]


def picture(chain: Chain, got: Any) -> str:
    """A line a shard: '#' weights, '+' what it needs to work, '|' where memory ends."""
    if not isinstance(got, list) or not all(isinstance(each, Integral) and each >= 0 for each in got) or len(got) > 30:
        return ''
    wide = max(chain.room, *(used for _, used in filled(chain, got)), 1)
    scale = min(1.0, 50 / wide)
    lines = []
    for number, (stored, used) in enumerate(filled(chain, got)):
        bar = ('#' * round(stored * scale)).ljust(round(used * scale), '+')
        line = bar.ljust(round(chain.room * scale))
        line = f'{line[:round(chain.room * scale)]}|{line[round(chain.room * scale):]}'
        lines.append(f'shard {number:<2} {line}  weights {stored} of {chain.buffer}, all {used} of {chain.room}')
    return '\n'.join(lines)


def greedy(chain: Chain, full: Callable[[Chain, int, int], bool], late: bool = False) -> list[int]:
    """Layers join the shard before them until `full(chain, weights, all bytes)`; `late`: and the one too many."""
    got, stored, used = [], 0, 0
    for weight, work in zip(chain.weights, chain.working):
        if not got or (full(chain, stored, used) if late else full(chain, stored + weight, used + weight + work)):
            got.append(0)
            stored = used = 0
        got[-1] += 1
        stored, used = stored + weight, used + weight + work
    return got


def without_working(chain: Chain) -> list[int]:
    """The weights alone are looked at."""
    return greedy(chain, lambda chain, stored, used: stored > min(chain.buffer, chain.room))


def largest_working(chain: Chain) -> list[int]:
    """Working bytes do not add up."""
    got, stored, most = [], 0, 0
    for weight, work in zip(chain.weights, chain.working):
        stored, most = stored + weight, max(most, work)
        if not got or is_full(chain, stored, stored + most):
            got.append(0)
            stored, most = weight, work
        got[-1] += 1
    return got


def leftover(chain: Chain, kept: str) -> list[int]:
    """By the rule, but the last shard is lost, or the layer that begins a shard is."""
    got = greedy(chain, is_full)
    return got[:-1] if kept == 'all but the last' else [got[0], *(count - 1 for count in got[1:])]


def never_emptied(chain: Chain) -> list[int]:
    """The bytes of the shards before still count."""
    got, stored, used = [], 0, 0
    for weight, work in zip(chain.weights, chain.working):
        stored, used = stored + weight, used + weight + work
        if not got or is_full(chain, stored, used):
            got.append(0)
        got[-1] += 1
    return got


def first_not_counted(chain: Chain) -> list[int]:
    """The layer that begins a shard takes no room."""
    got, stored, used = [0], 0, 0
    for weight, work in zip(chain.weights, chain.working):
        if is_full(chain, stored + weight, used + weight + work):
            got.append(1)
            stored = used = 0
        else:
            got[-1] += 1
            stored, used = stored + weight, used + weight + work
    return got


def evenly(chain: Chain) -> Iterator[list[int]]:
    """The same number of layers for each, for every number of shards."""
    layers = len(chain.weights)
    for n in range(1, layers + 1):
        yield [layers // n + (k < layers % n) for k in range(n)]
        yield [layers // n + (k >= n - layers % n) for k in range(n)]
        yield [n] * (layers // n) + [layers % n] * (layers % n > 0)


def is_full(chain: Chain, stored: int, used: int) -> bool:
    return stored > chain.buffer or used > chain.room


def at_end(chain: Chain, stored: int, used: int) -> bool:
    return stored >= chain.buffer or used >= chain.room


WRONG_CUTS: list[tuple[str, Callable[[Chain], list[int]]]] = [
    ('buffer-ignored', lambda chain: greedy(chain, lambda c, stored, used: used > c.memory)),
    ('buffer-ignored', lambda chain: greedy(chain, lambda c, stored, used: used > c.memory or stored > c.buffer)),
    ('next-too-large', lambda chain: greedy(chain, lambda c, stored, used: used > c.room)),
    ('working-ignored', without_working),
    ('working-ignored', lambda chain: greedy(chain, lambda c, stored, used: stored > c.room)),
    ('working-ignored', lambda chain: greedy(chain, lambda c, stored, used: stored > c.buffer)),
    ('working-ignored', lambda chain: greedy(chain, lambda c, stored, used: stored > c.memory)),
    ('working-in-buffer', lambda chain: greedy(chain, lambda c, stored, used: used > min(c.buffer, c.room))),
    ('working-in-buffer', lambda chain: greedy(chain, lambda c, stored, used: used > c.buffer)),
    ('largest-working', largest_working),
    ('one-too-many', lambda chain: greedy(chain, is_full, late=True)),
    ('one-too-many', lambda chain: greedy(chain, at_end, late=True)),
    ('first-not-counted', first_not_counted),
    ('last-lost', lambda chain: leftover(chain, 'all but the last')),
    ('layer-lost', lambda chain: leftover(chain, 'all but the first layers')),
    ('never-full', lambda chain: greedy(chain, at_end)),
    ('never-full', lambda chain: greedy(chain, lambda c, stored, used: stored > c.buffer or used >= c.room)),
    ('never-full', lambda chain: greedy(chain, lambda c, stored, used: stored >= c.buffer or used > c.room)),
    ('weights-twice', lambda chain: greedy(chain, lambda c, stored, used: used + stored > c.room or stored > c.buffer)),
    ('never-emptied', never_emptied),
    ('one-layer-each', lambda chain: [1] * len(chain.weights)),
]
