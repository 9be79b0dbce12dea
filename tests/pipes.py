"""Small pipelines for tests of behaviour, and layers that fail, wait or count."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fewgpu
from fewgpu import is_recomputing
from fewgpu.gpipe import GPipe
from tests.layers import Call

__all__ = ['BACKWARD', 'CHECKPOINTS', 'FORWARD', 'RECOMPUTE', 'Call', 'Failing', 'Slow', 'cut', 'mlp',
           'alive', 'program', 'settled']

CHECKPOINTS = ('always', 'except_last', 'never')
FORWARD, RECOMPUTE, BACKWARD = 'forward', 'recompute', 'backward'


def cut(*layers: nn.Module, cls: type = GPipe, **options: Any) -> nn.Module:
    """A pipeline with a stage a layer, on virtual devices."""
    options = {'devices': ['cpu'] * len(layers), **options}
    return cls(nn.Sequential(*layers), [1] * len(layers), **options)


def mlp(width: int = 4) -> list[nn.Module]:
    """Three layers for three stages, in float64."""
    return [nn.Linear(width, width).double(), nn.Tanh(), nn.Linear(width, width).double()]


class Failing(nn.Module):
    """Lets its input pass, until `fail(when, micro_batch, error)` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.recover()

    def recover(self) -> None:
        self.fail(None, -1, None)

    def fail(self, when: str | None, run: int, error: BaseException | None) -> None:
        """Raise `error` in the `run`-th forward, recompute or backward from now on (0 is the next)."""
        self.when, self.run, self.error = when, run, error
        self.runs = {FORWARD: 0, RECOMPUTE: 0, BACKWARD: 0}

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.pass_by(RECOMPUTE if is_recomputing() else FORWARD)
        return Watch.apply(value, self)

    def pass_by(self, when: str) -> None:
        run = self.runs[when]
        self.runs[when] += 1
        if (when, run) == (self.when, self.run):
            raise self.error   # the learner's own line


class Watch(torch.autograd.Function):
    """The identity, whose backward tells a layer that it runs."""

    @staticmethod
    def forward(ctx, value: torch.Tensor, layer: Failing) -> torch.Tensor:
        ctx.layer = layer
        return value.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        ctx.layer.pass_by(BACKWARD)
        return gradient, None


class Slow(nn.Module):
    """Takes `seconds` for every micro-batch, forward and backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        value = value.clone()
        if value.requires_grad:
            value.register_hook(lambda gradient: time.sleep(self.seconds))
        return value


def program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with this clone's library."""
    path = os.pathsep.join([str(Path(fewgpu.__file__).parents[1]), os.environ.get('PYTHONPATH', '')])
    return subprocess.run([sys.executable, '-c', text], capture_output=True, text=True, timeout=120,
                          env={**os.environ, 'PYTHONPATH': path})


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended, and that nobody has asked for its exit code, does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f'/proc/{pid}/stat')
        return not stat.exists() or stat.read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError:   # it is gone, maybe since the line before
        return False


def settled(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether the condition comes true: what other threads do takes a moment."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()
