"""What a rank keeps of parameters that all ranks use: everything, a slice, or on rank 0 alone.

    parameters   [ weight           | bias | ]        flat, one such tensor a dtype, padded
    slices       [ rank 0 | rank 1 | rank 2  ]        each rank reads its own, then all-gather
    broadcast    [ rank 0                    ]        rank 0 reads all, then broadcast

Slices use the disks and links of all ranks at the same time: N times the bandwidth of one. That is
the bandwidth-centric partitioning of ZeRO-Infinity (arXiv 2104.07857, section 6.1; ZeRO's stage 3
owns parameters likewise). Every parameter begins at a multiple of 64 bytes: kernels choose by that.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.alike import start_alike
from fewgpu.buckets import average
from fewgpu.collectives import Group, all_gather, all_reduce, broadcast, reduce, reduce_scatter
from fewgpu.group import new_group

_ALIGNED = 64   # bytes


class Whole:
    """One process has everything."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.trained = [parameter.requires_grad for parameter in parameters]   #: of every tensor kept
        self.places = [*range(len(parameters))]   #: of every parameter: in which tensor it is kept

    def own(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What this rank keeps of the parameters."""
        return [*tensors]

    def whole(self, own: list[torch.Tensor]) -> list[torch.Tensor]:
        """All parameters, from what every rank keeps."""
        return own

    def own_gradients(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Those of what this rank keeps, summed over the ranks; of parameters without, none."""
        return [*gradients]


class Slices:
    """Ranks share (a layer; of one dtype, and trained, as `fewgpu.zero.shards` does it, it would be a shard each).
    A parameter that a rank has no gradient for counts as zeros there.

    `gathering` and `reducing` are groups of the same ranks: two threads use them.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], gathering: Group, reducing: Group,
                 reading: str) -> None:
        self._gathering, self._reducing, self._broadcasts = gathering, reducing, reading == 'broadcast'
        self._shapes = [parameter.shape for parameter in parameters]
        kinds = [(parameter.dtype, parameter.requires_grad) for parameter in parameters]
        self._kinds = [*dict.fromkeys(kinds)]
        self._members = [[i for i, kind in enumerate(kinds) if kind == each] for each in self._kinds]
        self._room = [[_padded(parameters[i].numel(), _ALIGNED // dtype.itemsize) for i in members]
                      for (dtype, _), members in zip(self._kinds, self._members)]
        self.trained = [trained for _, trained in self._kinds]   #: of every tensor kept
        self.places = [*map(self._kinds.index, kinds)]   #: of every parameter: in which tensor it is kept

    def _sizes(self, room: list[int]) -> list[int]:
        """Elements a rank."""
        size = self._gathering.size
        if self._broadcasts:
            return [sum(room)] + [0] * (size - 1)
        return [_padded(sum(room), size) // size] * size

    def _flat(self, k: int, tensors: Sequence[torch.Tensor | None], place: torch.device) -> torch.Tensor:
        room = self._room[k]
        flat = torch.zeros(sum(self._sizes(room)), dtype=self._kinds[k][0], device=place)
        for part, i in zip(flat[:sum(room)].split(room), self._members[k]):
            if tensors[i] is not None:
                part[:tensors[i].numel()].copy_(tensors[i].reshape(-1))
        return flat

    def own(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        place, rank = next((tensor.device for tensor in tensors), None), self._gathering.rank
        return [self._flat(k, tensors, place).split(self._sizes(room))[rank].clone()
                for k, room in enumerate(self._room)]

    def whole(self, own: list[torch.Tensor]) -> list[torch.Tensor]:
        tensors: list[torch.Tensor] = [torch.empty(0)] * len(self._shapes)
        for k, (room, mine) in enumerate(zip(self._room, own)):
            sizes = self._sizes(room)
            flat = torch.empty(sum(sizes), dtype=mine.dtype, device=mine.device)
            pieces = flat.split(sizes)
            pieces[self._gathering.rank].copy_(mine)
            if self._broadcasts:
                broadcast(flat, self._gathering)
            else:
                all_gather(pieces, self._gathering)
            for part, i in zip(flat[:sum(room)].split(room), self._members[k]):
                tensors[i] = part[:self._shapes[i].numel()].view(self._shapes[i])
        return tensors

    def own_gradients(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        place = next((gradient.device for gradient in gradients if gradient is not None), torch.device('cpu'))
        return [self._reduced(self._flat(k, gradients, place), self._sizes(room)) if trained else None
                for k, (room, trained) in enumerate(zip(self._room, self.trained))]

    def _reduced(self, flat: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        if not self._broadcasts:
            return reduce_scatter(flat.split(sizes), self._reducing)
        reduce(flat, self._reducing)
        return flat.split(sizes)[self._reducing.rank]


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def verify_reading(reading: str) -> None:
    """Raises ValueError for a word that says nothing."""
    if reading not in ('slices', 'broadcast'):
        raise ValueError(f"every rank reads its own 'slices', or rank 0 reads all for a 'broadcast', not {reading!r}")


class Alone:
    """One process, which has nobody to agree with."""

    rank, size = 0, 1

    def share(self, parameters: Sequence[nn.Parameter]) -> Whole:
        return Whole(parameters)

    def take_rank_0(self, module: nn.Module) -> None:
        """Everybody takes the parameters and buffers of rank 0."""

    def least(self, number: int) -> int:
        """The least of all ranks' numbers, when all have come here."""
        return number

    def total(self, number: float, place: torch.device) -> float:
        """The sum of all ranks' numbers."""
        return number

    def summed(self, loss: torch.Tensor) -> torch.Tensor:
        """Over the ranks."""
        return loss

    def seed(self) -> int | None:
        """One for all ranks; None: let it be drawn when it is needed."""
        return None

    def average(self, buffers: Sequence[torch.Tensor], weight: float) -> None:
        """Replace running statistics by their means over the ranks; the weights add up to 1."""


class Together(Alone):
    """Ranks of torch.distributed. `reading` is 'slices' or 'broadcast'."""

    def __init__(self, group: dist.ProcessGroup | None, reading: str, time_limit: float) -> None:
        self._gathering, self._reducing = (   # for a thread each
            new_group(group, time_limit, 'Offloaded') for _ in range(2))
        self._reading, self.rank, self.size = reading, self._reducing.rank, self._reducing.size

    def share(self, parameters: Sequence[nn.Parameter]) -> Slices:
        return Slices(parameters, self._gathering, self._reducing, self._reading)

    def take_rank_0(self, module: nn.Module) -> None:
        start_alike(module, self._reducing)

    def least(self, number: int) -> int:
        told = torch.tensor(number)
        all_reduce(told, self._reducing, 'min')
        return int(told)

    def total(self, number: float, place: torch.device) -> float:
        told = torch.tensor(number, dtype=torch.float64, device=place)
        all_reduce(told, self._reducing)
        return told.item()

    def summed(self, loss: torch.Tensor) -> torch.Tensor:
        loss = loss.clone()
        all_reduce(loss, self._reducing)
        return loss

    def seed(self) -> int:
        told = torch.randint(2**62, (), dtype=torch.int64, device='cpu')
        broadcast(told, self._reducing)
        return int(told)

    def average(self, buffers: Sequence[torch.Tensor], weight: float) -> None:
        average([buffer for buffer in buffers if buffer.is_floating_point()], self._reducing, weight)
