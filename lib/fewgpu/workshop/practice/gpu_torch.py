"""All that the pretended GPUs use of torch and that its documentation does not promise. The rest is public.

If they break with a new release of torch, it is here. tests/test_practice_gpus.py says what has to hold.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

without_modes = torch._C.DisableTorchFunction
"""Inside, nobody answers in torch's place: `tensor.device` is what torch thinks."""

parse_to = torch._C._nn._parse_to
"""What nn.Module.to makes of its arguments: a device, a dtype and so on. It moves nothing."""


def key_of(storage: torch.UntypedStorage) -> int:
    """One number for all Python objects that stand for the same storage; it may be used again when that is gone."""
    return storage._cdata


class DispatchMode(TorchDispatchMode):
    """Sees every operation below what a program calls, those of a backward as well."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False   # torch would import all of torch._dynamo (a second) for the first operation


@contextmanager
def also_in_backward(mode: TorchFunctionMode) -> Iterator[None]:
    """Inside, hooks and autograd Functions have the mode in a backward, too, before which torch would leave it."""
    run_backward, thread = torch.autograd._engine_run_backward, threading.get_ident()

    def run_in_mode(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return run_backward(*args, **kwargs)
        with mode:
            return run_backward(*args, **kwargs)

    torch.autograd._engine_run_backward = run_in_mode
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = run_backward
