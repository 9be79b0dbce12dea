"""Random numbers that do not depend on who runs first.

Stages run at the same time and share one generator, so a dropout mask would depend on the order in
which threads happen to draw. Instead every (stage, micro-batch) draws from a stream of its own,
keyed by a seed that is drawn once a step from the caller's generator. The recompute of a forward
opens the same stream again and sees the same masks.
"""

import hashlib
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# One lock for the whole process: the streams are swapped into the default generators, of which
# there is one a device.
_lock = threading.RLock()
_draws: dict[Any, bool] = {}   # operation -> does it draw
_thread = threading.local()    # .depth: how many streams this thread has entered


class StepSeed:
    """The seed of one step. It is drawn from the caller's generator when a stage first needs it,
    so that a model without dropout leaves that generator alone. (Inside a stream, a pipeline in a
    pipeline that is, it is drawn at once: the generator belongs to the stream only here.)"""

    def __init__(self, value: int | None = None) -> None:
        self._value = value
        if value is None and getattr(_thread, 'depth', 0):
            self.get()

    def get(self) -> int:
        with _lock:
            if self._value is None:
                self._value = int(torch.randint(2**62, (), dtype=torch.int64, device='cpu'))
            return self._value


class Stream(TorchDispatchMode):
    """While it is entered, operations that draw random numbers draw them from this stream.

    `device` is where the stage lives: its default generator and the CPU's belong to the stream.
    The other operations pass through at a cost of about two microseconds.
    """

    def __init__(self, seed: StepSeed, stage: int, micro_batch: int, device: torch.device) -> None:
        super().__init__()
        self._key = seed, stage, micro_batch
        self._devices = {'cpu': torch.device('cpu'), device.type: device}
        self._states: dict[str, torch.Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False   # torch would import all of torch._dynamo (a second) for the first operation

    def __enter__(self) -> 'Stream':
        _thread.depth = getattr(_thread, 'depth', 0) + 1
        return super().__enter__()

    def __exit__(self, *exc_info) -> None:
        _thread.depth -= 1
        super().__exit__(*exc_info)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        draws = _draws.get(func)
        if draws is None:
            draws = _draws[func] = torch.Tag.nondeterministic_seeded in getattr(func, 'tags', ())
        if not draws:
            return func(*args, **(kwargs or {}))
        if (kwargs or {}).get('generator') is not None:
            return func(*args, **kwargs)   # the layer brings a generator of its own
        with _lock:
            return self._draw(func, args, kwargs or {})

    def _draw(self, func, args, kwargs):
        generators = {kind: _generator(device) for kind, device in self._devices.items()}
        for kind, generator in generators.items():
            if kind not in self._states:
                self._states[kind] = self._first_state(generator)
        callers = {kind: generator.get_state() for kind, generator in generators.items()}
        try:
            for kind, generator in generators.items():
                generator.set_state(self._states[kind])
            return func(*args, **kwargs)
        finally:
            for kind, generator in generators.items():
                self._states[kind] = generator.get_state()
                generator.set_state(callers[kind])

    def _first_state(self, generator: torch.Generator) -> torch.Tensor:
        seed, stage, micro_batch = self._key
        text = f'{seed.get()} {stage} {micro_batch}'.encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1
        return torch.Generator(generator.device).manual_seed(number).get_state()


def _generator(device: torch.device) -> torch.Generator:
    if device.type == 'cuda':
        torch.cuda.init()
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None
                                             else device.index]
    return torch.default_generator
