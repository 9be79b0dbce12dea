"""Stashes of weights, played: micro-batches go forward and backward, and updates come between."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from fewgpu.ledger import Counting, Ledger
from fewgpu.schedule import pipedream
from fewgpu.workshop.grading.law import shown
from fewgpu.workshop.practice.rows import cut

SIZE = 1000   # numbers of the weights, so that what else is kept of a tensor's kind does not count

MakeStash = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Play:
    """Operations in their order, as in 'F0 F1 U B0 B1': U is an update."""

    order: str
    seed: int = 0

    @property
    def operations(self) -> list[str]:
        return self.order.split()

    def changes(self) -> list[torch.Tensor]:
        """The weights from the start, and what each update adds to them."""
        generator = torch.Generator().manual_seed(self.seed)
        return [torch.rand(SIZE, dtype=torch.float64, generator=generator) + 1
                for _ in range(self.operations.count('U') + 1)]

    def truth(self) -> list[int]:
        """The version of every forward and backward."""
        return [version for _, version in self._versions()]

    def _versions(self) -> Iterator[tuple[str, int]]:
        newest, used = 0, {}
        for operation in self.operations:
            if operation == 'U':
                newest += 1
                continue
            version = used.setdefault(operation[1:], newest)
            yield operation, version

    def needed(self) -> list[int]:
        """After each operation: how many versions are still of use."""
        newest, used, counts = 0, {}, []
        for operation in self.operations:
            if operation == 'U':
                newest += 1
            elif operation[0] == 'F':
                used[operation[1:]] = newest
            else:
                del used[operation[1:]]
            counts.append(len({newest, *used.values()}))
        return counts


def plays(random: Random) -> list[Play]:
    """Smallest first."""
    orders = ['F0 B0', 'F0 B0 U F1 B1', 'F0 U B0', 'F0 U F1 B0 B1', 'F0 F1 U B0 B1', 'F0 U F1 B1 B0',
              'F0 F1 U F2 B1 B0 U B2', pipedream_row(2, 0, 4), pipedream_row(3, 0, 6), pipedream_row(3, 1, 6),
              pipedream_row(3, 2, 4), pipedream_row(4, 0, 8)]
    return [Play(order, random.randrange(10**6)) for order in [*orders, *(
        any_order(random) for _ in range(12))]]


def pipedream_row(stages: int, stage: int, micro_batches: int) -> str:
    return ' '.join('U' if op.kind == 'U' else f'{op.kind}{op.micro_batch}'
                    for op in pipedream(stages, micro_batches).rows[stage])


def any_order(random: Random) -> str:
    order, on_the_way, following = [], [], 0
    while following < 8 or on_the_way:
        kind = random.choice('FFBBU')
        if kind == 'F' and following < 8:
            order.append(f'F{following}')
            on_the_way.append(following)
            following += 1
        elif kind == 'B' and on_the_way:
            order.append(f'B{on_the_way.pop(random.randrange(len(on_the_way)))}')
        elif kind == 'U':
            order.append('U')
    return ' '.join(order)


def versions(make: MakeStash, play: Play) -> tuple[list[Any], bool]:
    """The version of every forward and backward, and whether an update wrote into what a forward on its way had got."""
    changes = play.changes()
    known = [torch.stack(changes[:end]).sum(0) for end in range(1, len(changes) + 1)]
    stash, found, overwritten = make(changes.pop(0)), [], False
    held: dict[int, tuple[Any, Any]] = {}
    for operation in play.operations:
        if operation == 'U':
            stash.update(changes.pop(0))
            continue
        i = int(operation[1:])
        weights = stash.forward(i) if operation[0] == 'F' else stash.backward(i)
        found.append(_version(weights, known))
        if operation[0] == 'F':
            held[i] = weights, weights.clone() if isinstance(weights, torch.Tensor) else None
        else:
            got, as_it_was = held.pop(i)
            overwritten |= isinstance(got, torch.Tensor) and not torch.equal(got, as_it_was)
    return found, overwritten


def _version(weights: Any, known: list[torch.Tensor]) -> Any:
    """Its number; for what is no version of the weights, what it is."""
    if not isinstance(weights, torch.Tensor):
        return weights
    for number, values in enumerate(known):
        if weights.shape == values.shape and torch.allclose(weights.double(), values, rtol=1e-6, atol=1e-6):
            return number
    return f'no version, {float(weights.double().mean()) if weights.numel() else 0:.4f} on average'


def copies(make: MakeStash, play: Play) -> list[int]:
    """After each operation: how many tensors as large as the weights are alive."""
    changes, ledger, counts = play.changes(), Ledger(), []
    box, size = [changes.pop(0)], changes[0].nbytes if changes else SIZE * 8
    ledger.adopt(box)
    with Counting(ledger):
        stash = make(box.pop())
        for operation in play.operations:
            if operation == 'U':
                box.append(changes.pop(0))
                ledger.adopt(box)
                stash.update(box.pop())
            else:
                ledger.adopt([w for w in [stash.forward(int(operation[1:])) if operation[0] == 'F' else
                                          stash.backward(int(operation[1:]))] if isinstance(w, torch.Tensor)])
            counts.append(alive(ledger, size))
    return counts


def alive(ledger: Ledger, size: int) -> int:
    """How many tensors of `size` bytes live. (Circles of references may keep some a while.)"""
    if ledger.allocated >= 2 * size:
        gc.collect()
    return ledger.allocated // size


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Inside, the garbage collector looks only at what has been made since."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def told(play: Play, got: Any, wanted: Any) -> str:
    """The order, and the first operation whose version is another one."""
    order = cut(f'order     {play.order}')
    if isinstance(got, BaseException):
        return f'{order}\nyours     {shown(got)}\nexpected  {_listed(play, wanted[0])}'
    names = [operation for operation in play.operations if operation != 'U']
    for name, found, right in zip(names, got[0], wanted[0]):
        if type(found) is not int or found != right:
            return (f'{order}\nweights for {name}\nyours     {_version_text(found)}\nexpected  {_version_text(right)}\n'
                    f'(version 1 is there after the first U, version 2 after the second, and so on)')
    return f'{order}\nthe weights that a forward has got, at its backward\nyours     changed\nexpected  as they were'


def _listed(play: Play, found: list[Any]) -> str:
    names = [operation for operation in play.operations if operation != 'U']
    return cut(', '.join(f'{name} {_version_text(each)}' for name, each in zip(names, found)))[:66]


def _version_text(found: Any) -> str:
    return f'version {found}' if type(found) is int else found if isinstance(found, str) else shown(found)


def table(play: Play, counts: list[int], needed: list[int]) -> str:
    """One line an operation: the copies that there are, a letter each, and those that are of use."""
    lines = ['after   copies            of use']
    lines += [f'{operation:<7} {"#" * min(count, 16):<17} {"#" * use}{"   <- too many" * (count > use)}'
              for operation, count, use in zip(play.operations, counts, needed)]
    return '\n'.join(lines[:24])


def wasteful(play: Play, counts: list[int]) -> str:
    """Where there are more copies than are of use, in a sentence."""
    over = [at for at, (count, use) in enumerate(zip(counts, play.needed())) if count > use]
    if not over:
        return ''
    return f'After operation {over[0] + 1}, {play.operations[over[0]]}, there are {counts[over[0]]} copies.'


def made(play: Play, kinds: str) -> list[int]:
    """After each operation: the version from the start, and one copy more for each operation of these kinds.

    A backward among them takes one away.
    """
    begun = [play.operations[:end] for end in range(1, len(play.operations) + 1)]
    return [1 + sum((-1 if each[0] == 'B' else 1) for each in done if each[0] in kinds) for done in begun]
