"""One step of an offloaded model: its units visit the device, each loaded while those before compute.

    forward    0  1  2  ...  n-2    inputs stay
    turn                      n-1   with the loss; forward and backward, so it is loaded once
    backward   n-2  ...  1  0       recompute, backward; gradients go to the host, which updates
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from fewgpu.ahead import Ahead
from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.offload.shares import Alone
from fewgpu.transport.copies import Parcel
from fewgpu.transport.host import on_host, to_device, to_host
from fewgpu.offload.unit import Unit
from fewgpu.offload.versions import Versions
from fewgpu.where import learners_line


class Span(NamedTuple):
    """Something that was done for a unit, and when (seconds of time.perf_counter).

    `step` is 'read' (store to host), 'copy' (host to device), 'gather' (from the other ranks), 'wait'
    (the device for what is loaded), 'compute', 'update' (gradients to the host, optimizer, write) or
    'finish' (the device waits for an update).
    """

    step: str
    unit: int
    start: float
    end: float


class Times(NamedTuple):
    """Where the time of a step went, in seconds of the thread that computes."""

    waiting: float     #: for what was loaded
    computing: float
    finishing: float   #: waiting for updates on the host

    @property
    def share(self) -> float:
        """Of the step, that the device waits for loads or for the host."""
        return (self.waiting + self.finishing) / (sum(self) or 1.0)


@dataclass
class Visit:
    """Of a unit to the device: forward only, or with what follows from its gradients."""

    unit: Unit
    back: bool = False
    own: list[torch.Tensor] = field(default_factory=list)      # of this rank, on the host
    states: tuple[list[torch.Tensor], Any] = ([], [])          # those of the optimizer
    values: list[torch.Tensor] = field(default_factory=list)   # of the parameters, on the device


@contextlib.contextmanager
def without_autocast(context: Context) -> Iterator[None]:
    """Inside, a backward sees no autocast of the caller, as where one calls it after the `with`; forwards
    enter it by themselves."""
    with contextlib.ExitStack() as stack:
        for kind, _ in context.autocast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class Visits:
    """Those of one step."""

    def __init__(self, units: Sequence[Unit], device: Device, versions: Versions, context: Context,
                 ranks: Alone, depth: int) -> None:
        self._units, self._device, self._versions, self._context = units, device, versions, context
        self._ranks, self._depth = ranks, depth
        self.spans: list[Span] = []

    def train(self, xs: list[Any], targets: list[Any], keep: str) -> torch.Tensor:
        """The loss. xs and targets (with their shares, see `WithLoss`) are one a micro-batch; `keep` is
        what a forward leaves behind, 'input' or 'graph'."""
        last = len(self._units) - 1
        first = next((unit.index for unit in self._units if unit.trains), last)   # of those with gradients
        self._begin(len(xs))
        visits = [*map(Visit, self._units[:last]), Visit(self._units[last], back=True),
                  *(Visit(unit, back=True) for unit in reversed(self._units[first:last]))]
        losses, gradients, update = [], [], None
        with (ThreadPoolExecutor(1, 'fewgpu update') as host,
              contextlib.closing(self._loaded(visits)) as loaded):
            for visit in loaded:
                unit = visit.unit
                with self._span('compute', unit, _doing(visit, last)), self._device.paced():
                    if not visit.back:
                        xs = [self._forward(unit, i, each, keep) for i, each in enumerate(xs)]
                    elif unit.index == last:
                        losses, gradients = self._turn(unit, xs, targets)
                    else:
                        gradients = [self._backward(unit, i, each) for i, each in enumerate(gradients)]
                changed = unit.changed()
                if (visit.back and unit.trains) or (changed and (visit.back or unit.index < first)):
                    self._finish(update, unit)
                    update = host.submit(self._update, visit, [*self._packed(unit, changed)])
            self._finish(update, self._units[first])
        return torch.stack(losses).sum().detach()

    def evaluate(self, xs: list[Any]) -> list[Any]:
        """The outputs, one a micro-batch, of a forward alone."""
        self._begin(len(xs), with_loss=False)
        with contextlib.closing(self._loaded([*map(Visit, self._units)])) as loaded:
            for visit in loaded:
                with self._span('compute', visit.unit, 'forward'), self._device.paced():
                    xs = [self._forward(visit.unit, i, each, 'nothing') for i, each in enumerate(xs)]
        return xs

    def _begin(self, count: int, with_loss: bool = True) -> None:
        self._number = self._ranks.rank * count   # of this rank's first micro-batch: for its random stream
        for unit in self._units:
            unit.begin(self._context, count, with_loss)

    def _forward(self, unit: Unit, i: int, x: Any, keep: str) -> Any:
        with unit.keeping_graph():
            outputs = unit.step.forward(self._number + i, x, keep)
        if keep == 'graph' and unit.changed():
            raise RuntimeError(f'layer {unit.index} changes its own parameters in its forward (max_norm, '
                               f'say), which would be lost: use recompute=True')
        return outputs

    def _backward(self, unit: Unit, i: int, gradients: list[torch.Tensor | None]
                  ) -> list[torch.Tensor | None]:
        unit.step.recompute(self._number + i)
        return unit.step.backward(self._number + i, gradients)

    def _turn(self, unit: Unit, xs: list[Any], targets: list[Any]) -> tuple[list[torch.Tensor], list[Any]]:
        """Loss and gradients of each micro-batch. Lets go of the xs one by one."""
        losses, gradients = [], []
        for i, target in enumerate(targets):
            x, xs[i] = xs[i], None
            losses.append(unit.step.forward(self._number + i, (x, target), 'graph'))
            ones = [torch.ones_like(losses[-1])] if losses[-1].requires_grad else [None]
            gradients.append(unit.step.backward(self._number + i, ones)[:len(pytree.tree_leaves(x))])
        return losses, gradients

    def _packed(self, unit: Unit, changed: list[torch.Tensor] | None) -> tuple[Parcel, Parcel | None]:
        """The gradients of the unit, and its values if a layer has changed its own."""
        gradients = unit.step.take_gradients()
        return (Parcel.of([gradients[parameter] for parameter in unit.piece.parameters]),
                None if changed is None else Parcel.of(changed))

    def _update(self, visit: Visit, packed: list[Parcel | None]) -> None:
        """In a thread of its own, while the device computes: from what was packed to what is in the stores."""
        gradients, changed = packed
        packed.clear()   # or the thread holds it until after the future has its result
        piece, own, states = visit.unit.piece, visit.own, visit.states
        visit.own, visit.states = [], ([], [])
        with (self._span('update', visit.unit), torch.no_grad(),
              self._context.on_streams(self._device.torch)):
            if changed is not None:
                own = piece.share.own(to_host(changed, self._device))
            if piece.hosts:
                with self._device.counting():
                    summed = Parcel.of(piece.share.own_gradients(gradients.value))
                piece.update(self._versions, own, states, to_host(summed, self._device))
            elif changed is not None:
                piece.write(self._versions, own)
            for source in visit.unit.tiles:
                source.update()

    def _finish(self, update: Future | None, unit: Unit) -> None:
        """One update at a time: until then its gradients are on the device."""
        with self._span('finish', unit):
            if update is not None:
                update.result()

    def _loaded(self, visits: list[Visit]) -> Iterator[Visit]:
        """Each visit, while the unit has its values."""
        with contextlib.closing(iter(self._ahead(visits, self._steps(), self._depth))) as loads:
            for visit in visits:
                with self._span('wait', visit.unit):
                    next(loads)
                values, visit.values = visit.values, []
                visit.unit.place(values)
                del values
                yield visit
                visit.unit.evict()

    def _steps(self) -> list[Callable[[Visit], Visit]]:
        return [self._read, self._copy, *([self._gather] if self._ranks.size > 1 else [])]

    def _ahead(self, visits: Iterable[Visit], steps: list[Callable[[Visit], Visit]], depth: int) -> Ahead:
        """Each step is one visit further than the next one, and reading as far as `depth`."""
        if len(steps) == 1 or depth <= 1:
            return Ahead(visits, *steps, depth=depth)
        return Ahead(self._ahead(visits, steps[:-1], depth - 1), steps[-1], depth=1)

    def _read(self, visit: Visit) -> Visit:
        piece = visit.unit.piece
        with self._span('read', visit.unit):
            visit.own = on_host(piece.read, self._versions)
            if visit.back and piece.hosts:
                visit.states = on_host(piece.read_states, self._versions)
        return visit

    def _copy(self, visit: Visit) -> Visit:
        with self._span('copy', visit.unit), self._context.on_streams(self._device.torch):
            visit.values = to_device(visit.own, self._device)
        if not visit.back:
            visit.own = []
        return visit

    def _gather(self, visit: Visit) -> Visit:
        with (self._span('gather', visit.unit), self._device.counting(),
              self._context.on_streams(self._device.torch)):
            visit.values = visit.unit.piece.share.whole(visit.values)
        return visit

    @contextlib.contextmanager
    def _span(self, step: str, unit: Unit, doing: str = '') -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except BaseException as error:
            if step not in ('wait', 'finish'):   # what is waited for may be another unit's, and says so itself
                error.add_note(f'in layer {unit.index} ({unit.kind}) on {self._device.name}, {doing or step}'
                               f'{learners_line(error)}')
            raise
        self.spans.append(Span(step, unit.index, start, time.perf_counter()))


def _doing(visit: Visit, last: int) -> str:
    return 'forward, loss and backward' if visit.unit.index == last else 'backward' if visit.back else 'forward'
