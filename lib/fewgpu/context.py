"""What a worker must know of the thread that called: torch keeps much of its state per thread."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from fewgpu.device import Device
from fewgpu.rng import StepSeed


@dataclass(frozen=True)
class Context:
    """The caller's modes, captured once a step."""

    seed: StepSeed
    gradients: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]   # (device type, dtype) where it is enabled
    default_device: torch.device
    streams: dict[torch.device, 'torch.cuda.Stream']

    @classmethod
    def capture(cls, devices: Iterable[Device]) -> 'Context':
        gpus = {device.torch for device in devices if device.torch.type == 'cuda'}
        kinds = ['cpu'] + (['cuda'] if torch.cuda.is_available() else [])
        return cls(
            seed=StepSeed(),
            gradients=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds
                           if torch.is_autocast_enabled(kind)),
            default_device=torch.get_default_device(),
            streams={gpu: torch.cuda.current_stream(gpu) for gpu in gpus})

    @contextlib.contextmanager
    def entered(self, device: Device) -> Iterator[None]:
        """Inside, this thread computes on `device` as the caller would."""
        with contextlib.ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            if self.default_device.type != 'cpu':
                stack.enter_context(self.default_device)
            own = self.streams.get(device.torch)   # entered last: it makes its GPU the current one
            for stream in [s for s in self.streams.values() if s is not own] + [own] * bool(own):
                stack.enter_context(torch.cuda.stream(stream))
            yield

    @contextlib.contextmanager
    def casting(self) -> Iterator[None]:
        """Inside, a forward sees the caller's autocast. (Not a backward: its operations take the
        types of the forward's.)"""
        with contextlib.ExitStack() as stack:
            for kind, dtype in self.autocast:
                # The cache of casted weights is one for all threads, and the first forward of a
                # recompute would leave casts without a graph in it.
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield
