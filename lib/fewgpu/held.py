"""The stages that this process holds: on threads all of them, on ranks those of one row."""

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.held_buffers import Followed
from fewgpu.limit import verify_time_limit
from fewgpu.loss import LossFn, WithLoss
from fewgpu.loss_scale import LossScale
from fewgpu.maker import verify_made, verify_maker
from fewgpu.minibatches import MiniBatches
from fewgpu.partition import place, split
from fewgpu.schedule import TARGET, Schedule
from fewgpu.skip_routes import wrapped
from fewgpu.stage import Stage, StageStep
from fewgpu.weights import Gradients

if TYPE_CHECKING:
    from fewgpu.hybrid import Replicas
    from fewgpu.transport.ranks import Ranks

MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
Average = Callable[[Gradients], Gradients]   # over pipelines side by side


class Held:
    """Rows of a layout, on a device each.

    `partitions` and `optimizers` go by (row, stage): a stage may be in several rows, its replicas. The
    first of them here has the layers of `module`, under their names, so that its state_dict has the
    keys of the plain model; the others have copies.
    """

    def __init__(self, module: nn.Sequential, balance: list[int], layout: Schedule,
                 rows: Sequence[int], devices: Sequence[Any] | None, loss_fn: LossFn,
                 optimizer: MakeOptimizer | None) -> None:
        """`devices` are one a row; None: the GPUs, or virtual CPU devices."""
        partitions = split(module, balance)
        self._layers: dict[tuple[int, int], nn.Module] = {}
        self._first: dict[int, nn.Module] = {}
        for s, replicas in layout.devices_of.items():
            for row in (row for row in replicas if row in rows):
                copied = copy.deepcopy(partitions[s]) if s in self._first else partitions[s]
                self._layers[row, s] = copied
                self._first.setdefault(s, copied)
        self.devices = place([nn.ModuleList(layers for (of, _), layers in self._layers.items() if of == row)
                              for row in rows], devices)
        self.module = nn.Sequential(OrderedDict(
            named for partition in self._first.values() for named in partition.named_children()))
        self.module.training = module.training
        self.partitions = {(row, s): wrapped(layers, s, layout.skips) for (row, s), layers in self._layers.items()}
        self._device_of = dict(zip(rows, self.devices))
        self._with_loss: dict[int, WithLoss] = {}
        for (row, s), partition in self.partitions.items():
            if s == len(balance) - 1:   # a loss may have buffers, which are in one place: the others take copies
                own = copy.deepcopy(loss_fn) if self._with_loss and isinstance(loss_fn, nn.Module) else loss_fn
                self._with_loss[row] = WithLoss(partition, own).to(self._device_of[row].torch)
        self.optimizers = self._make_optimizers(optimizer)
        self._followed = [Followed(first, copies) for s, first in self._first.items() if (copies := [
            (layers, self._device_of[row].torch) for (row, of), layers in self._layers.items()
            if of == s and layers is not first])]

    def of_row(self, row: int) -> dict[int, nn.Module]:
        """What a row holds, by stage."""
        return {s: partition for (of, s), partition in self.partitions.items() if of == row}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Of all replicas here, those of one stage under the same names: the plain model's."""
        for layers in self._layers.values():
            yield from layers.named_parameters()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of the plain model, or any part of it that has the own entries. All replicas here take them, for a
        state has the buffers of one only."""
        for layers in self._layers.values():
            layers.load_state_dict({key: state[key] for key in layers.state_dict() if key in state})

    def first_of(self, stage: int) -> nn.Module:
        """The layers of `module` that are a stage which is here."""
        return self._first[stage]

    def holds(self, stage: int) -> bool:
        return stage in self._first

    def begin(self, row: int, schedule: Schedule, context: Context, average: Average | None, batches: MiniBatches, *,
              updates: bool = True) -> dict[int, StageStep]:
        """A step of the stages of a row, which is to run its operations in `schedule` (with messages) on
        `batches`. Without `updates` gradients are left in the parameters' `.grad`."""
        begun = {}
        for s, module in self.of_row(row).items():
            ops = [op for op in schedule.rows[row] if op.stage == s]
            if any(op.message and op.message.what == TARGET for op in ops):
                module = self._with_loss[row]
            optimizer = self.optimizers.get((row, s)) if updates else None
            stage = Stage(s, module, self._device_of[row], optimizer, average)
            begun[s] = stage.begin(context, max(1, sum(op.kind == 'F' for op in ops) // len(batches.rows)),
                                   batches.rounds(schedule, s))
        return begun

    @torch.no_grad()
    def align(self) -> None:
        """Let the copies be as the layers of `module` are: modes, what is trained, and weights, for
        somebody may have loaded or changed those. Buffers stay each copy's own, but for those of `module` that
        somebody has changed since its last step.

        Raises ValueError for hooks on parameters, which would run for the first replica only.
        """
        for (_, s), layers in self._layers.items():
            first = self._first[s]
            if layers is first:
                continue
            if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in first.parameters()):
                raise ValueError(f'stage {s} lives on several devices, and its parameters have hooks, which '
                                 f'would not run for all of them: take the hooks away')
            for part, other in zip(first.modules(), layers.modules()):
                other.training = part.training
            for parameter, other in zip(first.parameters(), layers.parameters()):
                other.requires_grad_(parameter.requires_grad)
                other.copy_(parameter)
        for followed in self._followed:
            followed.follow()

    @contextlib.contextmanager
    def noting_buffers(self) -> Iterator[None]:
        """Inside, a step changes the buffers of `module`; who does it outside means those of the copies, too."""
        try:
            yield
        finally:
            for followed in self._followed:
                followed.note()

    def _make_optimizers(self, make: MakeOptimizer | None) -> dict[tuple[int, int], torch.optim.Optimizer]:
        """One for every stage, and replica, that has something to train."""
        trained = {key: [p for p in partition.parameters() if p.requires_grad]
                   for key, partition in self.partitions.items()}
        made = {key: make(iter(parameters)) for key, parameters in trained.items() if make and parameters}
        for optimizer in made.values():
            verify_made(optimizer)
        return made


def device_of_rank(index: int) -> Device:
    """The current GPU, or a virtual device."""
    if torch.cuda.is_available():
        return Device(torch.device('cuda', torch.cuda.current_device()))
    return Device('cpu', index=index)


def verify_options(optimizer: Any, loss_scale: Any, time_limit: Any) -> None:
    """Raises TypeError or ValueError for what is none of these; each may be None."""
    if optimizer is not None:
        verify_maker(optimizer, 'stage')
    verify_loss_scale(loss_scale, updates=optimizer is not None)
    if time_limit is not None:
        verify_time_limit(time_limit)


def verify_loss_scale(loss_scale: Any, *, updates: bool) -> None:
    """Raises TypeError for what is no LossScale, ValueError for one without optimizers."""
    if loss_scale is not None and not isinstance(loss_scale, LossScale):
        raise TypeError(f'loss_scale is a fewgpu.loss_scale.LossScale (a GradScaler is for those who call backward and '
                        f'step themselves), not {loss_scale!r}')
    if loss_scale is not None and not updates:
        raise ValueError('a loss scale needs optimizer=...: stages agree before they update')


def verify_layout(layout: Schedule, ranks: int | None, *, replicas: int, updates: bool, is_mean: bool) -> None:
    """Raises ValueError if a pipeline cannot train by this schedule: on so many ranks (None: threads), as one of so
    many replicas, with an optimizer or without, and by a loss that is a mean or a sum."""
    if layout.update_every and not is_mean and any(len(devices) > 1 for devices in layout.devices_of.values()):
        raise ValueError(f'{layout.name} with replicas of stages updates by the mean of a round of micro-batches, '
                         f'which halves, say, a loss that is a sum: give a loss that is a mean')
    if layout.update_every and (replicas > 1 or not updates):
        raise ValueError(f'{layout.name} updates the weights within a step: '
                         + ('replicas need a schedule that flushes, as 1f1b' if replicas > 1 else
                            'pass optimizer=...'))
    if ranks and len(layout.rows) != ranks:
        stages, rest = divmod(layout.stages * ranks, len(layout.rows))
        raise ValueError(f'the schedule {layout.name} of {layout.stages} stages needs '
                         f'{len(layout.rows)} ranks, a row a rank, and there are {ranks}'
                         + (f': give a balance of {stages} stages' if not rest else ''))


def take_first_replicas(held: Held, layout: Schedule, ranks: 'Ranks | None', beside: 'Replicas | None') -> None:
    """Every replica of a stage takes the parameters and buffers of the first one: of those in other rows (on threads
    they are copies already), and of those in pipelines beside this one."""
    for s, rows in layout.devices_of.items():
        if ranks and len(rows) > 1:
            mine = [*held.of_row(ranks.index)[s].state_dict().values()] if ranks.index in rows else []
            told = ranks.tell(rows[0], [tensor.cpu() for tensor in mine])
            for tensor, value in zip(mine, told):
                tensor.copy_(value)
    if beside:
        beside.take_first_replica(held.module)


def of_all_replicas(ranks: 'Ranks | None', homes: Sequence[int], values: dict[int, Any]) -> list[Any]:
    """What the last stage returned for every micro-batch, in order; on ranks that of all its replicas, in the
    rows `homes`, if there are several."""
    if ranks and len(homes) > 1:
        told = [ranks.tell(row, values if row == ranks.index else None) for row in homes]
        values = {i: value for each in told for i, value in each.items()}
    return [values[i] for i in sorted(values)]


def verify_alike(ranks: 'Ranks', module: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError on a rank whose layers or other arguments are not those of the first one."""
    layers = (f'{name} {tuple(parameter.shape)}' for name, parameter in module.named_parameters())
    mine = {what: f'{value}' for what, value in arguments.items()} | {'layers': ', '.join(layers)}
    first = ranks.tell(0, mine)
    for what, value in mine.items():
        if value != first[what]:
            error = ValueError(f'{what}: {value[:200]} on rank {ranks.members[ranks.index]}, '
                               f'{first[what][:200]} on rank {ranks.members[0]}: every rank makes '
                               f'the same Pipeline')
            ranks.abort(error)
            raise error
