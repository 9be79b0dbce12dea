"""When a unit's parameters come and go, and its gradients leave: around its forward and backward.

    forward    gather | forward of the unit | release
    backward                                            gather | backward | release, reduce-scatter

For autograd a unit's parameters come out of one function, `_Gather`, whose backward takes their
gradients: the opposite of gathering is to reduce and scatter. What layers save of gathered parameters
is saved as a place in the unit's flat tensor, so that the graph does not keep them alive, and is looked
up again, gathered again, in the backward.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import Variable
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from fewgpu.zero.shards import Line, Unit
from fewgpu.weights import storage
from fewgpu.where import learners_line


class _Place(NamedTuple):
    """Of a saved tensor in a unit's flat tensor, as of so many updates."""

    unit: Unit
    updates: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Gathering:
    """Wraps the layers of a module whose parameters are units, in the order of their forwards.

    With `ahead` the next unit is gathered while one computes: its bytes are there a little earlier.
    `sync`: whether gradients are reduced in the backward, unit by unit.
    """

    def __init__(self, owners: Sequence[tuple[nn.Module, Unit]], line: Line, *, ahead: bool,
                 sync: bool) -> None:
        self._units = [unit for _, unit in owners]
        self._line, self._ahead = line, ahead
        self._number = {unit: number for number, unit in enumerate(self._units)}
        self._anchor = torch.zeros((), requires_grad=True)   # or nobody would ask for a backward
        self._saved_as: dict[int, Unit] = {}         # by storage, of what is gathered now
        self._in_backward: dict[Unit, ExitStack] = {}
        self._task = -1                              # the backward that goes on
        self.weight: Future | None = None   #: of this rank's rows in the forward that goes on
        self.sync = sync                    #: of the backward of the forwards that come
        for owner, unit in owners:
            owner.forward = partial(self._forward, unit, type(owner).__name__, owner.forward)

    def _forward(self, unit: Unit, kind: str, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        views = unit.views(self._whole(unit))
        is_recompute = unit in self._in_backward
        if not is_recompute:
            self._begin(self._number[unit] + 1)
        try:
            tensors = _Gather.apply(self._anchor, self, unit, views)
            with unit.place(tensors), self._saving():
                outputs = forward(*inputs, **named)
        except BaseException as error:
            doing = 'recompute' if is_recompute else 'forward'
            error.add_note(f'in unit {self._number[unit]} ({kind}, with {unit.names[0]}) on rank '
                           f'{self._line.group.rank}, {doing}{learners_line(error)}')
            raise
        finally:
            del views
            if not is_recompute:   # else the backward goes on to need it
                self._release(unit)
        if torch.is_grad_enabled() and unit.is_sharded:
            for leaf in pytree.tree_leaves(outputs):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    leaf.register_hook(lambda _: self._begin_backward(unit))
        return outputs

    def _saving(self) -> AbstractContextManager:
        # Others' hooks go first: torch's checkpoint must see what would be saved, to save nothing.
        others = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        if others or not self._units[0].is_sharded:
            return nullcontext()
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        unit = self._saved_as.get(storage(tensor))
        if unit is None:
            return tensor, tensor._version
        return _Place(unit, unit.updates, tensor.size(), tensor.stride(), tensor.storage_offset())

    def _unpack(self, packed: Any) -> torch.Tensor:
        if not isinstance(packed, _Place):
            tensor, version = packed
            if tensor._version != version:
                raise RuntimeError('a tensor that is needed for the backward has been changed by an '
                                   'operation in place')
            return tensor
        if packed.unit.updates != packed.updates:
            raise RuntimeError('the parameters have changed since this forward: call backward before '
                               'step, or forward again')
        return self._whole(packed.unit).as_strided(*packed[2:])

    def _whole(self, unit: Unit) -> torch.Tensor:
        whole = unit.whole()
        if unit.is_sharded:
            self._saved_as[storage(whole)] = unit
        return whole

    def _begin(self, number: int) -> None:
        if self._ahead and 0 <= number < len(self._units):
            self._units[number].begin()

    def _release(self, unit: Unit) -> None:
        if unit.is_sharded:
            self._saved_as = {key: other for key, other in self._saved_as.items() if other is not unit}
            unit.release()

    def end(self) -> None:
        """Of a forward or a backward: let go of what was gathered and not used."""
        self._task = -1
        for places in self._in_backward.values():
            places.close()
        self._in_backward.clear()
        for unit in self._units:
            self._release(unit)

    # In the backward

    def _begin_backward(self, unit: Unit) -> None:
        """Of the unit: its parameters come, also to where a recompute looks for them."""
        self._watch_end()
        if unit not in self._in_backward:
            views = [view.detach().requires_grad_() for view in unit.views(self._whole(unit))]
            self._in_backward[unit] = places = ExitStack()
            places.enter_context(unit.place(views))
            self._begin(self._number[unit] - 1)

    def _watch_end(self) -> None:
        if self._task != (task := torch._C._current_graph_task_id()):
            self._task = task
            Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        """Called before `backward` returns."""
        self.end()
        self._line.wait()

    def take(self, unit: Unit, gradients: Sequence[torch.Tensor | None], weight: float, sync: bool) -> None:
        """The unit's backward is done."""
        self._watch_end()
        if places := self._in_backward.pop(unit, None):
            places.close()
        self._release(unit)
        self._line.wait()   # the gradients of the unit before: then there is room for these
        unit.add(gradients, weight)
        if sync:
            unit.reduce()


class _Gather(torch.autograd.Function):
    """The parameters of a unit, as tensors of the graph."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, gathering: Gathering, unit: Unit,
                views: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.take = partial(gathering.take, unit)
        ctx.weight, ctx.sync = gathering.weight, gathering.sync
        return tuple(views)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        ctx.take(gradients, ctx.weight.result(), ctx.sync)
        return None, None, None, None
