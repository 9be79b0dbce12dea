"""What a worker must know of the thread that called: torch keeps much of its state per thread."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.recompute import is_recomputing, recomputing
from fewgpu.rng import StepSeed


@dataclass(frozen=True)
class Context:
    """The caller's modes, captured once a step."""

    seed: StepSeed
    gradients: bool
    inference: bool
    recomputing: bool                               # a pipeline in a pipeline may be
    autocast: tuple[tuple[str, torch.dtype], ...]   # (device type, dtype) where it is enabled
    default_device: torch.device
    streams: dict[torch.device, 'torch.cuda.Stream']

    @classmethod
    def capture(cls, devices: Iterable[Device], seed: int | None = None) -> 'Context':
        gpus = {device.torch for device in devices if device.torch.type == 'cuda'}
        kinds = ['cpu'] + (['cuda'] if torch.cuda.is_available() else [])
        return cls(
            seed=StepSeed(seed),
            gradients=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            recomputing=is_recomputing(),
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
            stack.enter_context(recomputing(self.recomputing))
            if self.default_device.type != 'cpu':
                stack.enter_context(self.default_device)
            stack.enter_context(self.on_streams(device.torch))
            yield

    @contextlib.contextmanager
    def on_streams(self, current: torch.device | None = None) -> Iterator[None]:
        """Inside, this thread uses the caller's streams; `current` becomes the current GPU."""
        with contextlib.ExitStack() as stack:
            for gpu in sorted(self.streams, key=lambda gpu: gpu == current):   # the current one last
                stack.enter_context(torch.cuda.stream(self.streams[gpu]))
            yield

    def hand_over(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Make what was computed on the streams of this step ready for the current streams, which
        differ if the caller went to another stream after the forward."""
        for gpu, stream in self.streams.items():
            now = torch.cuda.current_stream(gpu)
            if now == stream:
                continue
            now.wait_stream(stream)
            for tensor in tensors:
                if tensor is not None and tensor.device == gpu and tensor.layout is torch.strided:
                    tensor.record_stream(now)

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


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, all its parts are in evaluation mode; afterwards each is in its own again."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
