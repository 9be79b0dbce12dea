"""Flat tensors that are cut evenly over the ranks, and the thread that moves them.

    parameters of a unit   | weight          | bias | 0 |      padded to a multiple of the ranks
    flat                   | rank 0 | rank 1 | rank 2   |      a shard each, contiguous

(Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5: every data-parallel process owns 1/N of the
optimizer states, gradients and parameters.)
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from fewgpu.collectives import Group, _reduce_scatter_in_place, all_gather
from fewgpu.recompute import Swap

Slots = list[tuple[Any, Any, nn.Parameter]]   # container, key, parameter


class Line:
    """The communication thread of a rank: one job after the other, on all ranks in the same order.

    `group` counts the bytes of parameters and gradients, `notes` those of a few numbers beside them.
    After a job has failed all others fail with its error, at once.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.notes = group, Group(group.process_group, group.time_limit)
        self._thread = ThreadPoolExecutor(1, 'zero')   # ends when nobody refers to it
        self._error: Exception | None = None
        self._reduction: Future | None = None

    def submit(self, job: Callable[..., Any], *arguments: Any) -> Future:
        return self._thread.submit(self._run, [job, *arguments])

    def do(self, job: Callable[..., Any], *arguments: Any) -> Any:
        return self.submit(job, *arguments).result()

    def _run(self, call: list[Any]) -> Any:
        job, *arguments = call
        call.clear()   # what it refers to is free when it is done, not a little later
        if self._error is not None:
            raise self._error
        try:
            return job(*arguments)
        except Exception as error:
            self._error = error
            raise

    def reduce(self, job: Callable[..., Any], *arguments: Any) -> None:
        """Beside what the caller does next; one reduction at a time, so that gradients do not pile up."""
        self.wait()
        self._reduction = self.submit(job, *arguments)

    def wait(self) -> None:
        """For the latest reduction."""
        if self._reduction is not None:
            self._reduction.result()
            self._reduction = None


class Unit:
    """The learned parameters of one part of a model, which are gathered and reduced together.

    `trained` is the shard that this rank's optimizer updates. With a `precision` it is a precise copy
    (float32), and what the layers compute with is rounded from it.

    stage 1, 2   `_whole` is all of the unit, for good, and `_held` this rank's part of it
    stage 3      `_held` is the shard, `_whole` is there while it is needed

    (`fewgpu.offload.shares` cuts flat parameters over ranks, too: several dtypes, and frozen ones, for its stores.
    Here a unit has one dtype and is trained.)
    """

    def __init__(self, slots: Slots, names: dict[str, nn.Parameter], line: Line, *, stage: int,
                 precision: torch.dtype | None) -> None:
        """`names` are those of all learned parameters of the model."""
        number = {p: i for i, p in enumerate(dict.fromkeys(parameter for _, _, parameter in slots))}
        parameters, first, size = list(number), next(iter(number)), line.group.size
        self.places = {name: number[p] for name, p in names.items() if p in number}   #: of its parameters
        self._order = [number[parameter] for _, _, parameter in slots]
        self.shapes = [parameter.shape for parameter in parameters]
        self.elements = sum(shape.numel() for shape in self.shapes)
        self.length = -(-self.elements // size)   #: of a shard
        self._sizes = [*(shape.numel() for shape in self.shapes), size * self.length - self.elements]
        self._line, self.is_sharded = line, stage == 3
        self.dtype, self._device = precision or first.dtype, first.device
        self._cut(parameters, precision)
        self._rest(slots)
        self._coming: Future | None = None
        self._kept: torch.Tensor | None = None        # gradients of this rank alone, all of the unit
        self._gradient: torch.Tensor | None = None    # of all ranks, the shard
        self.updates = 0   #: of the parameters so far

    @torch.no_grad()
    def _cut(self, parameters: Sequence[nn.Parameter], precision: torch.dtype | None) -> None:
        flat = self.flat_of(parameters)
        self._whole = None if self.is_sharded else flat.to(self.dtype)
        self._held = self.own(flat).to(self.dtype, copy=True) if self.is_sharded else self.own(self._whole)
        precise = self._held if precision is None else self.own(flat).to(torch.float32, copy=True)
        self.trained = nn.Parameter(precise)

    def _rest(self, slots: Slots) -> None:
        """What the module holds between forwards: views of the whole, or shapes without numbers."""
        if self.is_sharded:
            nothing = torch.empty(0, dtype=self.dtype, device='meta')
            values = [nothing.as_strided(shape, [0] * len(shape)) for shape in self.shapes]
        else:
            values = self.views(self._whole)
        resting = [nn.Parameter(value) for value in values]
        for parameter in resting:
            parameter.register_hook(_used_elsewhere)
        self._swap = Swap([(container, key) for container, key, _ in slots])
        for (container, key), parameter in zip(self._swap.slots, self._in_slots(resting)):
            container[key] = parameter

    def _in_slots(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[index] for index in self._order]

    def place(self, tensors: Sequence[torch.Tensor]) -> Any:
        """A context in which the module computes with these."""
        return self._swap.to(self._in_slots(tensors))

    # Flat tensors

    def flat_of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensors side by side, padded."""
        return torch.cat([*(tensor.detach().reshape(-1) for tensor in tensors),
                          tensors[0].detach().new_zeros(self._sizes[-1])])

    @property
    def names(self) -> list[str]:
        """One for each parameter, in order."""
        return [name for _, name in sorted({place: name for name, place in self.places.items()}.items())]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self.shapes)]

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part."""
        return self._pieces(flat)[self._line.group.rank]

    def _pieces(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        return flat.view(self._line.group.size, self.length).unbind()   # also of no elements

    def gathered(self, shard: torch.Tensor) -> torch.Tensor:
        """All ranks' shards side by side. Every rank calls it."""
        return self._gather(shard.detach()).result()

    def _gather(self, shard: torch.Tensor) -> Future:
        # Made here, and not in the thread: a ledger watches the thread that computes.
        flat = torch.empty(sum(self._sizes), dtype=shard.dtype, device=shard.device)
        return self._line.submit(self._fill, flat, shard)

    def _fill(self, flat: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        self.own(flat).copy_(shard)
        all_gather(self._pieces(flat), self._line.group)
        return flat

    # Parameters

    def begin(self) -> None:
        """Gather, beside what the caller does next, if that is needed."""
        if self._whole is None and self._coming is None:
            self._coming = self._gather(self._held)

    def whole(self) -> torch.Tensor:
        """All parameters of the unit."""
        self.begin()
        if self._whole is None:
            self._whole, self._coming = self._coming.result(), None
        return self._whole

    def release(self) -> None:
        if self.is_sharded:
            self._whole = self._coming = None

    @torch.no_grad()
    def refresh(self) -> Future | None:
        """`trained` has changed: so do the parameters that the layers compute with."""
        self.updates += 1
        if self._held.data_ptr() != self.trained.data_ptr():
            self._held.copy_(self.trained)
        if self.is_sharded:
            return self.release()
        return self._line.submit(all_gather, self._pieces(self._whole), self._line.group)

    def values(self) -> list[torch.Tensor]:
        """The parameters as they are trained, whole. Every rank calls it."""
        if not self.is_sharded and self.trained.dtype == self.dtype:
            return self.views(self._whole)
        return self.views(self.gathered(self.trained))

    # Gradients

    @torch.no_grad()
    def add(self, gradients: Sequence[torch.Tensor | None], weight: float) -> None:
        """Add weight x gradient to what this rank keeps, nothing for None. A weight of 0 makes zeros
        also of inf and nan."""
        fresh = self._kept is None
        if fresh:
            self._kept = torch.empty(sum(self._sizes), dtype=self.dtype, device=self._device)
            self._kept[self.elements:].zero_()
        for view, gradient in zip(self.views(self._kept), gradients):
            if gradient is None or weight == 0:
                view.zero_() if fresh else None
            elif fresh:
                torch.mul(gradient, weight, out=view)
            else:
                view.add_(gradient, alpha=weight)

    def reduce(self) -> None:
        """Let every rank add its part of what all ranks keep to its shard's gradient; drop the rest."""
        if self._kept is None:
            return
        flat, self._kept = self._kept, None
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._held)
        self._line.reduce(self._reduce, flat, self._gradient)

    def _reduce(self, flat: torch.Tensor, gradient: torch.Tensor) -> None:
        _reduce_scatter_in_place('reduce_scatter', self._pieces(flat), self._line.group, 'sum')
        gradient.add_(self.own(flat))

    def hand_over(self) -> None:
        """The gradient to the optimizer."""
        if self._gradient is not None:
            gradient, self._gradient = self._gradient.to(self.trained.dtype), None
            self.trained.grad = gradient if self.trained.grad is None else self.trained.grad + gradient

    def drop_gradients(self) -> None:
        self._kept = self._gradient = self.trained.grad = None


def _used_elsewhere(_: torch.Tensor) -> None:
    raise RuntimeError('a parameter was used outside the forward of its layer, where its gradient is '
                       'lost: call the layer, or make both parts of one child of the module')
