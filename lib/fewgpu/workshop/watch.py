"""What a script measures while it trains: speed, memory, and how busy the devices are."""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from fewgpu.device import Device, get_devices
from fewgpu.meter import Meter
from fewgpu.trace import Timeline


class Cores(Device):
    """Several cores of the CPU that count as one device, with one memory.

    `threads` of them work on one operation: all of them for a plain model, one for a pipeline of
    another library, whose stages run in threads of its own.
    """

    def __init__(self, cores: int, *, threads: int, memory_limit: int | None = None) -> None:
        super().__init__('cpu')
        self.cores, self.threads, self.memory_limit = cores, threads, memory_limit
        if 1 < cores <= 4:
            self.name = 'CPU ' + '+'.join(map(str, range(cores)))
        elif cores > 4:
            self.name = f'CPU 0-{cores - 1}'
        if memory_limit is not None:
            self.meter()

    @contextlib.contextmanager
    def active(self) -> Iterator[Device]:
        """Inside, the calling thread and those that it starts are this device."""
        with _threads(self.threads), self.counting():
            yield self


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def devices_of(args: argparse.Namespace) -> list[Device]:
    """The devices that a script may use: one a stage; for the plain script one in all."""
    if args.pipeline:
        return get_devices(args.devices, memory_limit=args.memory_limit)
    if torch.cuda.is_available():
        return get_devices(1, memory_limit=args.memory_limit)
    return [Cores(args.devices, threads=args.devices, memory_limit=args.memory_limit)]


class Watch(Meter):
    """A `fewgpu.meter.Meter` for any of the models that a script may have built.

    That is a pipeline (it says itself where its stages live) or a plain model, which is on the
    first of `devices`; its training steps are confined to that device, so to one core of a CPU.
    """

    def __init__(self, model: nn.Module, devices: Sequence[Device],
                 optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model = model
        self.is_pipeline = hasattr(model, 'stage_devices')
        self.stage_devices = list(model.stage_devices if self.is_pipeline else devices[:1])
        super().__init__(zip(model.partitions if self.is_pipeline else [model], self.stage_devices),
                         optimizer)
        self.engine = getattr(model, 'engine', 'fewgpu') if self.is_pipeline else 'plain'
        self.timeline: Timeline | None = None   #: of the last step that had as many samples as any
        self._busy: list[tuple[list[float], float]] = []   # seconds of every device, of the step
        self._most_samples = 0

    @contextlib.contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """Measure what happens inside as one training step."""
        with super().step(samples):
            processor = time.process_time()
            with self._place():
                yield
            processor = time.process_time() - processor
        self._note_busy(samples, self._steps[-1][1], processor)

    def _place(self) -> contextlib.AbstractContextManager:
        """Where the thread that trains computes. The stages of our pipeline have threads of their
        own: what is left is the loss and the optimizer, some milliseconds of one core. On several
        they need helper threads, who get in the way of the stages, and keep it waiting wherever the
        cores are busy: steps of 0.3 s were seen to take 0.7 s."""
        if self.engine != 'fewgpu':
            return self.devices[0].active()
        return _threads(1) if self.devices[0].is_virtual else contextlib.nullcontext()

    def _note_busy(self, samples: int, seconds: float, processor: float) -> None:
        if self.engine == 'fewgpu':
            timeline = self.model.timeline
            self._busy.append(([timeline.busy(row) for row in range(len(timeline.rows))], seconds))
            if samples >= self._most_samples:
                self._most_samples, self.timeline = samples, timeline
        else:
            self._busy.append(([processor / self.cores], seconds))

    @property
    def samples(self) -> int:
        """How many samples were trained on, over all steps and epochs."""
        return sum(samples for samples, _ in self._steps)

    @property
    def cores(self) -> int:
        """How many cores the devices are (1 where they are GPUs)."""
        if self.engine == 'fewgpu':
            return sum(device.is_virtual for device in self.devices) or 1
        return getattr(self.devices[0], 'cores', 1)

    @property
    def busy_share(self) -> list[float] | None:
        """How much of the measured steps each device computed; None where nobody knows."""
        steps = self._busy[self._warm_up:] or self._busy
        if not steps or (self._gpus() and (self.engine != 'fewgpu' or self._shared)):
            return None
        total = sum(seconds for _, seconds in steps) or 1.0
        return [sum(device) / total for device in zip(*(busy for busy, _ in steps))]

    @property
    def _shared(self) -> bool:
        """Do several stages share a GPU?"""
        return len(self._gpus()) < len(self.stage_devices)

    @property
    def busy_how(self) -> str:
        """One sentence on how `busy_share` was measured."""
        if self._gpus() and self._shared:
            return 'not measured: the kernels of stages that share a GPU cannot be told apart'
        if self.engine == 'fewgpu':
            return 'seconds in which a device ran operations of the pipeline, of those of the training step'
        if self._gpus():
            return 'not measured: only the pipeline of fewgpu tells what its GPUs do'
        mean = f'mean of {self.cores} cores: ' if self.cores > 1 else ''
        return (f'{mean}processor seconds of the process, of the seconds of the training step '
                '(a thread that spins while it waits counts as busy)')

    @property
    def memory_how(self) -> str:
        """One sentence on how `memory()` was measured."""
        if self._gpus():
            return "PyTorch's own allocator counted, over all steps"
        if len(self._steps) == 1:
            return ('the memory ledger counted during the only step (a second needs more: the optimizer remembers the '
                    'first)')
        if any(device.memory_limit for device in self.devices):
            return 'the memory ledger counted during all steps, for there is a limit (it slows them down a little)'
        if len(self._steps) <= self._warm_up:
            return f'the memory ledger counted during all {len(self._steps)} steps (it slows them down a little)'
        return f'the memory ledger counted during the first {self._warm_up} steps; the speed is that of the others'
