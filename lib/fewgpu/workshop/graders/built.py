"""What a learner's `build(args)` does on its way to a pipeline: what it measures, cuts and moves."""

import functools
import linecache
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import fewgpu.balance
from fewgpu.workshop import arguments
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.grading.work import Work


@dataclass
class Seen:
    """What happened while a model was built."""

    model: Any = None
    error: Exception | None = None   #: that ended it
    measured: list[tuple[str, int]] = field(default_factory=list)   #: 'time', 'memory' or 'both'; rows of the sample
    cuts: list[list[int]] = field(default_factory=list)             #: balances, as they were found
    moved: list[Line] = field(default_factory=list)                 #: where the learner's file moves a whole model


def flags(text: str) -> Namespace:
    """The flags of the script, as they are read from a command line."""
    return arguments.parse(None, pipeline=True, arguments=text.split())


def build(work: Work, text: str) -> Seen:
    """Let the learner's file build the model that these flags ask for, and note what happens."""
    function, seen = work.build, Seen()
    with _watched(work, seen):
        try:
            result = function(flags(text))
        except Exception as error:
            seen.error = error
            return seen
    if result is None:
        raise Failure(misconception='returns-nothing')
    seen.model = result[0] if isinstance(result, (tuple, list)) else result
    return seen


@contextmanager
def _watched(work: Work, seen: Seen) -> Iterator[None]:
    """The functions of fewgpu.balance note what they are called with, and measure no longer than they have to."""
    def profile(module: nn.Sequential, sample: Any, **options: Any) -> Any:
        by_learner = work.is_learners(sys._getframe(1).f_code.co_filename)   # who takes seconds or bytes from it
        seen.measured.append(('both' if by_learner else 'time', len(sample)))
        return originals['profile'](module, sample, **{**options, 'timeout': 0.0})

    def weigh(module: nn.Sequential, sample: Any, **options: Any) -> Any:
        seen.measured.append(('memory', len(sample)))
        return originals['weigh'](module, sample, **options)

    def cut(*costs: Any, **options: Any) -> list[int]:
        seen.cuts.append(list(originals['cut'](*costs, **options)))
        return seen.cuts[-1]

    watching = {'profile': profile, 'weigh': weigh, 'cut': cut}
    modules = [fewgpu.balance, work.module, *(sys.modules[f'fewgpu.balance.{name}'] for name in ('cut', 'profile'))]
    originals = {name: getattr(sys.modules[f'fewgpu.balance.{"cut" if name == "cut" else "profile"}'], name)
                 for name in watching}
    places = [(vars(module), key, name) for name in watching for module in modules
              for key, value in list(vars(module).items()) if value is originals[name]]
    for names, key, name in places:
        names[key] = functools.wraps(originals[name])(watching[name])
    try:
        with _moves_noted(work, seen):
            yield
    finally:
        for names, key, name in places:
            names[key] = originals[name]


@contextmanager
def _moves_noted(work: Work, seen: Seen) -> Iterator[None]:
    """Where a whole model is moved by the learner's file."""
    def noting(move: Callable) -> Callable:
        @functools.wraps(move)
        def moving(self: nn.Module, *where: Any, **named: Any) -> Any:
            caller = sys._getframe(1)
            if work.is_learners(caller.f_code.co_filename) and _is_whole(self) and _to_device(where, named):
                seen.moved.append(_line(caller))
            return move(self, *where, **named)
        return moving

    originals = {name: getattr(nn.Module, name) for name in ('to', 'cuda')}
    for name, move in originals.items():
        setattr(nn.Module, name, noting(move))
    try:
        yield
    finally:
        for name, move in originals.items():
            setattr(nn.Module, name, move)


def _is_whole(module: nn.Module) -> bool:
    """Not a part of a network only: it begins with the first layer, and ends with the last."""
    layers = list(module.modules())
    return isinstance(module, nn.Sequential) and any(isinstance(layer, nn.Linear) for layer in layers) and any(
        isinstance(layer, nn.Conv2d) and layer.in_channels == 1 for layer in layers)


def _to_device(where: tuple, named: dict[str, Any]) -> bool:
    """Not only to another dtype: `cuda()` takes nothing or a number."""
    return not where and not named or bool({'device', 'tensor', 'other'} & named.keys()) or any(
        isinstance(each, (torch.device, str, int, torch.Tensor)) for each in where)


def _line(frame: FrameType) -> Line:
    return Line(frame.f_lineno, linecache.getline(frame.f_code.co_filename, frame.f_lineno).rstrip())


def undone(work: Work, step: int) -> None:
    """Raise `Failure` if there is nothing yet between the marks of that step. (Who has taken them out is not asked.)"""
    lines = Path(work.module.__file__).read_text(encoding='utf-8').splitlines()
    for number, line in enumerate(lines):
        if re.match(rf'\s*# (TODO )?STEP {step}\b', line):
            block = [each.strip() for each in lines[number:]]
            block = block[:block.index('# END')] if '# END' in block else block
            if all(not each or each.startswith('#') or each in ('pass', '...') for each in block):
                raise Failure(f'(Step {step}.)', misconception='unsolved', lines=[Line(number + 1, line)])


@dataclass(frozen=True)
class Device:
    """As fewgpu's."""

    torch: torch.device


class Placed(nn.Module):
    """A model whose stages are on these GPUs, without the GPUs: it knows what GPipe knows of its devices."""

    def __init__(self, devices: list[str]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(1, 1).to(device) for device in devices))
        self.partitions, self.devices = list(self.layers), [torch.device(device) for device in devices]
        self.stage_devices = [Device(device) for device in self.devices]
