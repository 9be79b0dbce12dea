"""The pilot run: where to cut a model into shards that fit a device (Hydra, arXiv 2110.08633).

    balance = shards_that_fit(layers, x, y, nn.functional.cross_entropy, device)
    model = Spilled(layers, balance, device=device, loss_fn=nn.functional.cross_entropy, ...)

Nothing is estimated: layers run on the device, and torch.OutOfMemoryError says where to cut. The rules
are those of the authors' code (hydra/components/partitioner/Pilot.py). Layers are added one at a time,
each tested forward and backward beside the weights of those before it. The first that does not fit
is dropped; then the whole shard is tested, and layers are dropped from its end until it fits. (If it fits
at once, it is also tried with more: a layer by itself keeps a copy of its input, which inside a shard it
does not.) Layers that a skip passes (`fewgpu.skip`), from its Save to its last Load, are added and dropped together.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.balance.sandbox import sandbox
from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.gate import flags
from fewgpu.loss import LossFn
from fewgpu.partition import device_of, verify_has_layers
from fewgpu.skip_routes import held_together
from fewgpu.spill.shard import Placed, Shard
from fewgpu.spill.units import MiniBatch, Unit, WithLoss


def shards_that_fit(module: nn.Sequential, x: Any, y: Any, loss_fn: LossFn, device: Device, *,
                    double_buffer: int | float = 0.4, inputs_on_host: bool = False) -> list[int]:
    """Layers a shard, as few shards as the rules find, for `Spilled` with this mini-batch.

    `double_buffer` is kept free: bytes, or a share (below 1.0) of the device's limit. Half of it is for
    the shard that is on its way in, half for the gradients on their way out, so no shard is larger than
    half of it. 0 is for Spilled without prefetch. Without `inputs_on_host` the inputs of all shards stay on
    the device. No skip (`fewgpu.skip`) goes from one shard to another.
    (Optimizers work on the host, and need nothing here.)

    Copies of the layers run, so the module, its gradients and the random generators stay as they are.
    Raises ValueError if the device has no limit, or a layer does not fit by itself; an error of a layer has
    a note.
    """
    verify_has_layers(module)
    device = device_of(device)
    if device.is_virtual and device.memory_limit is None:
        raise ValueError('a pilot run needs a limit to run into: Device(memory_limit=bytes)')
    with sandbox(device):
        pilot = _Pilot(module, y, loss_fn, device, inputs_on_host, _reserved(device, double_buffer))
        peak = device.ledger and device.ledger.peak
        try:
            return pilot.cut(x)
        finally:
            if device.ledger:
                device.ledger.peak = peak


def _reserved(device: Device, double_buffer: int | float) -> int:
    """In bytes. Raises ValueError if that leaves nothing."""
    limit = device.memory_limit
    if limit is None:
        limit = torch.cuda.get_device_properties(device.torch).total_memory
    reserved = int(double_buffer if isinstance(double_buffer, int) else double_buffer * limit)
    if not 0 <= reserved < limit:
        raise ValueError(f'the double buffer is a part of the {limit:,} bytes of {device.name}, not '
                         f'{double_buffer}: give bytes, or a share as 0.4')
    return reserved


class _Pilot:
    """One pilot run."""

    def __init__(self, module: nn.Sequential, y: Any, loss_fn: LossFn, device: Device,
                 inputs_on_host: bool, reserved: int) -> None:
        layers = iter(module.named_children())
        self._groups = [[next(layers) for _ in range(count)] for count in held_together(module)]   # cut between these
        self._y, self._loss_fn = y, loss_fn
        self._device, self._on_host, self._reserved = device, inputs_on_host, reserved
        self._context = Context.capture([device], seed=0)

    def cut(self, x: Any) -> list[int]:
        """The balance, in layers."""
        groups = iter(map(len, self._groups))
        return [sum(next(groups) for _ in range(count)) for count in self._cut(x)]

    def _cut(self, x: Any) -> list[int]:
        """In groups of layers, as all counts from here on."""
        buffer = torch.empty(self._reserved, dtype=torch.uint8, device=self._device.torch)
        if self._device.ledger:
            self._device.ledger.adopt([buffer])
        inputs = Placed(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, x), None)
        kept, balance = [], []
        while (first := sum(balance)) < len(self._groups):
            count, outputs = self._largest(first, inputs)
            balance.append(count)
            if not self._on_host:
                kept.append(inputs.to(self._device))   # as Spilled would
            inputs = outputs
        return balance

    def _largest(self, first: int, inputs: Placed) -> tuple[int, Placed]:
        """How many fit as one shard, and what it returns."""
        count = max(1, self._reach(first, inputs))
        outputs = self._try(first, count, inputs)
        while outputs is None and count > 1:
            count -= 1
            if (outputs := self._try(first, count, inputs)) is not None:
                return count, outputs
        if outputs is None:
            raise ValueError(self._too_large(first))
        while first + count < len(self._groups):
            if (more := self._try(first, count + 1, inputs)) is None:
                break
            count, outputs = count + 1, more
        return count, outputs

    def _reach(self, first: int, inputs: Placed) -> int:
        """How many fit one by one, each beside the weights of those before it."""
        held = []
        for k in range(first, len(self._groups)):
            if (inputs := self._try(k, 1, inputs)) is None:
                return k - first
            try:
                held += self._shard(k, 1).promote(self._device)
            except torch.OutOfMemoryError:
                return k - first
        return len(self._groups) - first

    def _try(self, first: int, count: int, inputs: Placed) -> Placed | None:
        """What these return (on the host), tried as one shard; None if they do not fit."""
        shard, last = self._shard(first, count), first + count == len(self._groups)
        if self._reserved and 2 * shard.bytes > self._reserved:
            return None
        with_loss = WithLoss(shard.module, self._loss_fn) if last else None
        batch = MiniBatch([shard], with_loss, inputs, self._y, self._context, [],
                          inputs_on_host=self._on_host)
        try:
            if last:
                batch.compute(Unit('L', 0), shard.promote(self._device), self._device)
                return inputs   # of no further use
            batch.compute(Unit('F', 0), shard.promote(self._device), self._device)
            outputs = batch.inputs.pop(1).to(None)   # where the backward does not meet it
            batch.gradient = Placed([torch.ones_like(leaf) if needed else None for leaf, needed in zip(
                pytree.tree_leaves(outputs.value), flags(outputs.value))], None)
            batch.compute(Unit('B', 0), shard.promote(self._device, again=True), self._device)
            return outputs
        except torch.OutOfMemoryError:
            if not self._device.is_virtual:
                torch.cuda.empty_cache()
            return None
        except Exception as error:
            error.add_note(f'in a pilot run of layers {self._before(first)} to {self._before(first + count) - 1}')
            raise

    def _shard(self, first: int, count: int) -> Shard:
        layers = [layer for group in self._groups[first:first + count] for _, layer in group]
        return Shard(0, copy.deepcopy(nn.Sequential(*layers)))

    def _before(self, group: int) -> int:
        """How many layers."""
        return sum(map(len, self._groups[:group]))

    def _too_large(self, k: int) -> str:
        first, group = self._before(k), self._groups[k]
        name, layer = group[0]
        what = f'layer {first} ({name}, {type(layer).__name__}) does not fit {self._device.name} by itself, '
        if len(group) > 1:
            what = (f'layers {first} to {first + len(group) - 1}, which a skip holds together, do not fit '
                    f'{self._device.name} by themselves, ')
        return (f'{what}'
                f'beside a double buffer of {self._reserved:,} bytes and what the shards before it keep '
                f'there: use smaller mini-batches or inputs_on_host=True, reserve less (or more, if the '
                f'layer is over half of it), or cut the layer into tiles')
