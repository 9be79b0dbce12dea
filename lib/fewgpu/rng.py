"""Random numbers that do not depend on who runs first.

Stages run at the same time and share one generator, so a dropout mask would depend on the order in
which threads happen to draw. Instead every (stage, micro-batch) draws from a stream of its own,
keyed by a seed that is drawn once a step from the caller's generator. The recompute of a forward
opens the same stream again and sees the same masks.
"""

import hashlib
import sys
import threading
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from fewgpu.recompute import is_checkpointing

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
        kwargs = kwargs or {}
        if not draws or _is_off(func, args, kwargs):
            return func(*args, **kwargs)
        if kwargs.get('generator') is not None or func is _CUDNN_RNN:   # not torch's generator
            if is_checkpointing():
                raise RuntimeError('a layer draws from a random generator of its own (as an RNN '
                                   'with dropout does on a GPU), so its forward cannot be '
                                   "recomputed: use checkpoint='never', or let it draw from torch's "
                                   'default generator, as nn.Dropout does')
            return func(*args, **kwargs)
        if _in_torch_checkpoint():
            raise RuntimeError('torch.utils.checkpoint round a layer that draws random numbers '
                               'would draw others the second time: leave the recompute to the '
                               "pipeline (checkpoint='always')")
        with _lock:
            return self._draw(func, args, kwargs)

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


_CUDNN_RNN = torch.ops.aten._cudnn_rnn.default
_SWITCHES = ('dropout_p', 'dropout', 'train', 'training')   # arguments of operations that may draw


def _is_off(func: Any, args: tuple, kwargs: dict) -> bool:
    """Attention without dropout, for one, is an operation that may draw, but does not."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in _SWITCHES:
            value = args[index] if index < len(args) else kwargs.get(argument.name,
                                                                     argument.default_value)
            if value is not None and not value:
                return True
    return False


def _in_torch_checkpoint() -> bool:
    """Is this thread in the first forward of torch.utils.checkpoint? It saves the state of the
    default generator, which it would put back in the backward; a stream has a state of its own."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != torch.utils.checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


def _generator(device: torch.device) -> torch.Generator:
    if device.type == 'cuda':
        torch.cuda.init()
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None
                                             else device.index]
    return torch.default_generator
