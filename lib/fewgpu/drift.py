"""Have replicas drifted apart? Checksums of their parameters, compared every n steps.

    drift = Drift(model, group, every=100)     # on every rank
    for x, y in batches:
        loss_fn(model(x), y).backward()
        average_one_by_one(model.parameters(), group)
        optimizer.step()
        drift.look()                           # raises Drifted if a rank's parameters are others

Replicas that start alike and make the same updates have the same bits for ever. Where one of them forgets to average
its gradients, or averages a copy of them, nobody fails: each trains a model of its own, and the loss falls.
"""

import zlib
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import nn

from fewgpu.alike import of_all
from fewgpu.group import Group


class Drifted(RuntimeError):
    """Ranks that should have the same parameters have not. Every rank raises it."""


class Drift:
    """Compares the parameters of `module` with those of the other ranks of `group`, every `every` calls of `look`.

    A comparison reads all parameters once (on a GPU they are copied to the host) and sends one number of 8 bytes
    to each rank; only if these differ, one number a parameter follows. Buffers are not compared: running statistics
    may be each rank's own.

    Raises ValueError if `every` is no whole number of at least 1.
    """

    def __init__(self, module: nn.Module, group: Group, *, every: int = 100) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f'replicas are compared every 1, 2, 3 ... steps, not every {every!r}')
        self._named = [*module.named_parameters()]
        self._group, self._every, self._steps = group, every, 0

    def look(self) -> None:
        """After a step of the optimizer; all ranks call it. Raises Drifted, PeerError if a rank does not take part."""
        self._steps += 1
        if self._steps % self._every == 0:
            self.compare()

    def compare(self) -> None:
        """Now. Raises as `look` does."""
        own = [checksum(parameter) for _, parameter in self._named]
        every = of_all([zlib.crc32(repr(own).encode())], self._group)
        if all(theirs == every[0] for theirs in every):
            return
        sums = of_all(own, self._group)
        place = next(k for k, alike in enumerate(zip(*sums)) if len({*alike}) > 1)
        count = sum(len({*alike}) > 1 for alike in zip(*sums))
        raise Drifted(f'the replicas have drifted apart, seen after {self._steps} steps: {count} of {len(own)} '
                      f'parameters differ, the first is {self._named[place][0]!r}, where '
                      f'{_camps([theirs[place] for theirs in sums])}: average the gradients of every parameter on '
                      f'every rank before each update (the gradients themselves, not a copy)')


def checksum(tensor: torch.Tensor) -> int:
    """The same for the same bits, whatever the strides."""
    return zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


def _camps(sums: Sequence[int]) -> str:
    """Which ranks have the same: the odd one out, if it is one against others that agree."""
    camps = defaultdict(list)
    for rank, value in enumerate(sums):
        camps[value].append(rank)
    if len(camps) == len(sums):
        return f'no two of ranks 0 to {len(sums) - 1} have the same numbers'
    few, *others = sorted(camps.values(), key=len)
    many = others[-1]
    odd = [rank for camp in (few, *others[:-1]) for rank in camp]
    if len(few) == len(many):
        return ' and '.join(f'ranks {_listed(camp)} agree' for camp in sorted(camps.values()))
    return (f'rank{"s" * (len(odd) > 1)} {_listed(odd)} ha{"ve" if len(odd) > 1 else "s"} other numbers than '
            f'ranks {_listed(many)}, which agree')


def _listed(ranks: Sequence[int]) -> str:
    return ' and '.join(filter(None, [', '.join(map(str, ranks[:-1])), str(ranks[-1])]))
