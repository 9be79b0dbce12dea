"""GPipe: a drop-in for nn.Sequential that trains it as a pipeline (arXiv 1811.06965).

    model = GPipe(model, balance=[10, 12], chunks=8)
    loss = loss_fn(model(x), target.to(model.devices[-1]))
    loss.backward()

Forward and backward are the two halves of a schedule (`fewgpu.schedule.gpipe`), run by the
interpreter in the workers of the devices; `fewgpu.bridge` joins them to the caller's graph.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.bridge import Step
from fewgpu.device import Device
from fewgpu.microbatch import check_leaves, scatter
from fewgpu.partition import place, split, turn_of, verify_balance, verify_module
from fewgpu.schedule import CHECKPOINTS, gpipe, with_recompute, with_skips
from fewgpu.skip import routes, wrapped
from fewgpu.stage import Stage
from fewgpu.trace import Timeline
from fewgpu.transport import refuse_devices_around


class GPipe(nn.Module):
    """An nn.Sequential, cut into stages that work on different micro-batches at the same time.

    Arguments:
        module: the layers, an nn.Sequential.
        balance: layers per stage; see `fewgpu.balance`.
        devices: one a stage (torch devices, or `fewgpu.device.Device`s); by default the GPUs, or
            virtual CPU devices where there is none.
        chunks: micro-batches per mini-batch (fewer if there are fewer rows).
        checkpoint: which micro-batches are recomputed in training: 'always', 'except_last' or
            'never'.
        deferred_batch_norm: running statistics of the mini-batch instead of each micro-batch.
        skips: how long skips travel (see `fewgpu.skip`): 'straight', or 'through' all stages between.

    Outputs and gradients equal those of the plain module, applied micro-batch by micro-batch. The
    keys of the state_dict are the plain module's.

    Layers run in other threads. Autocast and the gradient modes of the caller hold there, other
    contexts (profilers, saved-tensor hooks) do not; while a step runs, its layers are not to be
    used by others. A recompute replays torch's random numbers and the buffers, but not what a layer
    draws from Python's or NumPy's generators, nor what it counts in attributes of its own.

    Raises TypeError if the module is no nn.Sequential, ValueError for a wrong balance or argument,
    IndexError if there are fewer devices than stages.
    """

    balance: list[int] = []               #: layers per stage
    devices: list[torch.device] = []      #: where each stage lives; the output is on devices[-1]
    chunks: int = 1                       #: micro-batches per mini-batch
    checkpoint: str = 'except_last'       #: 'always', 'except_last' or 'never'

    def __init__(self, module: nn.Sequential, balance: Iterable[int] | None = None, *,
                 devices: Iterable[Any] | None = None, chunks: int = chunks,
                 checkpoint: str = checkpoint, deferred_batch_norm: bool = False,
                 skips: str = 'straight') -> None:
        super().__init__()
        self.chunks, self.checkpoint = int(chunks), str(checkpoint)
        if self.chunks <= 0:
            raise ValueError('number of chunks must be positive integer')
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError("checkpoint is not one of 'always', 'except_last', or 'never'")
        verify_module(module)
        self.balance = verify_balance(module, balance)
        if deferred_batch_norm:
            module = DeferredBatchNorm.convert_deferred_batch_norm(module, self.chunks)
        self._skips = routes(module, self.balance, skips)
        partitions = split(module, self.balance)
        self.stage_devices: list[Device] = place(partitions, devices)
        self.devices = [device.torch for device in self.stage_devices]
        self._spans: list | None = None   # (operation, start, end) of the latest step, a row a device
        for part in (self, partitions, *partitions):   # layers keep their own modes
            part.training = module.training
        # The layers are children under their own names, so that the keys of the state_dict are the
        # plain module's; the partitions are only views of them. (Last: a layer may have any name.)
        self.__dict__['partitions'] = partitions
        self._modules.update(module._modules)
        self._turn = turn_of(self)

    @property
    def timeline(self) -> Timeline | None:
        """What the latest forward, and the backward that belonged to it, did on every device."""
        if self._spans is None:
            return None
        return Timeline.of(self._spans, [device.name for device in self.stage_devices])

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The output mini-batch of an input mini-batch: a tensor, or any nesting of tensors in
        tuples, lists and dicts; None and numbers reach every micro-batch.

        Raises TypeError for anything else; an exception in a layer comes out as it is, with a note
        that tells its stage and micro-batch.
        """
        if 'input' in named:   # as nn.Sequential calls it
            inputs += (named.pop('input'),)
        if len(inputs) != 1 or named:
            raise TypeError('GPipe takes one input, as nn.Sequential does: pass several tensors as '
                            'a tuple or dict, model((a, b)), which the first layer unpacks')
        if not self.balance:   # nothing to do, and nothing to cut
            if not any(isinstance(leaf, torch.Tensor) for _, leaf in check_leaves(inputs[0])):
                raise TypeError(f'expected Tensor, but got {type(inputs[0]).__name__}')
            return inputs[0]
        micro_batches = scatter(inputs[0], self.chunks)
        checkpoint = self.checkpoint if self.training else 'never'
        schedule = with_skips(gpipe(len(self.balance), len(micro_batches)), self._skips)
        schedule = with_recompute(schedule, checkpoint)
        refuse_devices_around(self.stage_devices)
        with self._turn:
            step = Step(schedule, self._stages(), self._turn)
            self._spans = step.spans
            return step.forward(inputs[0], micro_batches)

    def _stages(self) -> list[Stage]:
        layers = [layer for partition in self.partitions for layer in partition]
        if [*map(id, layers)] != [*map(id, self)]:
            raise RuntimeError('a layer was added or replaced after the model had been cut into '
                               'stages: change the layers first, then make the GPipe')
        return [Stage(j, wrapped(module, j, self._skips), device)
                for j, (module, device) in enumerate(zip(self.partitions, self.stage_devices))]

    def train(self, mode: bool = True) -> 'GPipe':
        super().train(mode)
        self.partitions.train(mode)
        return self

    def __len__(self) -> int:
        return sum(self.balance)

    def __getitem__(self, index: int) -> nn.Module:
        return list(self._modules.values())[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._modules.values())

    def __getstate__(self) -> dict:
        return {**self.__dict__, '_spans': None, '_turn': None}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._turn = turn_of(self)

    def cuda(self, device: Any = None) -> 'GPipe':
        raise _moving_denied()

    def cpu(self) -> 'GPipe':
        raise _moving_denied()

    def to(self, *args: Any, **kwargs: Any) -> 'GPipe':
        """Only to another dtype."""
        if {'device', 'tensor'} & kwargs.keys() or isinstance(
                next(iter(args), None), (torch.device, int, str, torch.Tensor)):
            raise _moving_denied()
        return super().to(*args, **kwargs)


def _moving_denied() -> TypeError:
    return TypeError('denied to move parameters and buffers, because GPipe should manage device '
                     'placement: say where with GPipe(..., devices=[...])')
