"""Samples a second, and memory of every device.

On GPUs the allocator tells what is allocated. On virtual devices the ledger counts, which slows
small models down, so it counts during the first steps only and the speed is measured over the
others (a device with a memory limit keeps counting; the report says so).
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fewgpu.device import Device

_UNITS = {'': 1, 'k': 10**3, 'm': 10**6, 'g': 10**9, 't': 10**12,
          'ki': 2**10, 'mi': 2**20, 'gi': 2**30, 'ti': 2**40}


def parse_bytes(text: str) -> int:
    """Bytes from '600MB', '1.5 GB', '512MiB' or '1000000'. Raises ValueError with the known units."""
    match = re.fullmatch(r'\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*', text.lower())
    size = int(float(match[1]) * _UNITS[match[2] or '']) if match else 0
    if size <= 0:
        raise ValueError(f'{text!r} is no amount of memory: write it like 600MB, 1.5GB or 512MiB')
    return size


@dataclass(frozen=True)
class Memory:
    """Bytes on one device: allocated after a step, at its peak, and the share of parameters and
    buffers. `reserved` is what a GPU's allocator holds (None on virtual devices)."""

    name: str
    allocated: int
    peak: int
    parameters: int
    reserved: int | None = None

    def __str__(self) -> str:
        reserved = '' if self.reserved is None else f', reserved {self.reserved / 1e9:.3f} GB'
        return (f'{self.name}: allocated {self.allocated / 1e9:.3f} GB{reserved}, '
                f'peak {self.peak / 1e9:.3f} GB')


class Meter:
    """Measures the training steps of a model whose parts live on devices.

        meter = Meter([(model, device)], optimizer)           # or zip(pipe.partitions, pipe.stage_devices)
        for x, y in loader:
            with meter.step(len(x)):
                ...
        meter.samples_per_second, meter.memory()

    The first `warm_up` steps are for the memory ledger and for caches to fill; they count for the
    speed only if there are no others.
    """

    def __init__(self, parts: Iterable[tuple[nn.Module, Device]],
                 optimizer: torch.optim.Optimizer | None = None, *, warm_up: int = 2) -> None:
        self._parts = list(parts)
        self._optimizer, self._warm_up = optimizer, warm_up
        self.devices: Sequence[Device] = list(dict.fromkeys(device for _, device in self._parts))
        self._steps: list[tuple[int, float]] = []   # samples, seconds
        self._last_memory: list[Memory] = []
        for device in self.devices:   # a device with a limit has counted before
            if device.ledger:
                device.ledger.reset_peak()
        for gpu in self._gpus():
            torch.cuda.init()   # or the allocator would not know the GPU yet
            torch.cuda.reset_peak_memory_stats(gpu)

    @contextlib.contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """Measure what happens inside as one training step."""
        counting = len(self._steps) < self._warm_up or any(d.memory_limit for d in self.devices)
        if counting:
            self._count()
        self._synchronize()
        start = time.perf_counter()
        try:
            yield
        except BaseException:   # interrupted, say: what comes next is not to be counted
            self._stop_counting()
            raise
        self._synchronize()
        self._steps.append((samples, time.perf_counter() - start))
        if counting:
            self._adopt()
            self._last_memory = self._read()
        if len(self._steps) >= self._warm_up:
            self._stop_counting()

    def _stop_counting(self) -> None:
        for device in self.devices:
            device.unmeter()

    @property
    def samples_per_second(self) -> float:
        """Over the steps after the warm-up (over all, if there are no others)."""
        steps = self._steps[self._warm_up:] or self._steps
        return sum(samples for samples, _ in steps) / (sum(seconds for _, seconds in steps) or 1.0)

    @property
    def measured_steps(self) -> int:
        """How many steps the speed is measured over."""
        return len(self._steps[self._warm_up:] or self._steps)

    def memory(self) -> list[Memory]:
        """Of every device (a GPU that several stages share appears once)."""
        return self._read() if self._gpus() else self._last_memory

    def _gpus(self) -> list[torch.device]:
        return list(dict.fromkeys(d.torch for d in self.devices if d.torch.type == 'cuda'))

    def _synchronize(self) -> None:
        for gpu in self._gpus():
            torch.cuda.synchronize(gpu)

    def _count(self) -> None:
        for module, device in self._parts:
            if ledger := device.meter():
                ledger.adopt([*module.parameters(), *module.buffers()], parameters=True)

    def _adopt(self) -> None:
        """Gradients and optimizer states belong to the device of their parameter, in whichever
        thread they were made."""
        for module, device in self._parts:
            if ledger := device.ledger:
                for parameter in module.parameters():
                    state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
                    ledger.adopt(t for t in [parameter.grad, *state.values()]
                                 if isinstance(t, torch.Tensor))

    def _read(self) -> list[Memory]:
        if not self._gpus():
            return [Memory(d.name, d.ledger.allocated, d.ledger.peak, d.ledger.parameters)
                    for d in self.devices if d.ledger]
        return [Memory(f'GPU {gpu.index}', torch.cuda.memory_allocated(gpu),
                       torch.cuda.max_memory_allocated(gpu), self._parameters_on(gpu),
                       torch.cuda.memory_reserved(gpu)) for gpu in self._gpus()]

    def _parameters_on(self, gpu: torch.device) -> int:
        return sum(t.numel() * t.element_size() for module, device in self._parts
                   if device.torch == gpu for t in [*module.parameters(), *module.buffers()])
