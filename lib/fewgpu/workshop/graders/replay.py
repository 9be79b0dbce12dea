"""A forward that is run again for its backward, put to the test: what comes out in a case.

A learner's answer is a pair of functions, forward(layer, x) -> y, kept and backward(layer, kept, gradient). The plain
layer, whose graph waits for the backward, is such a pair (PLAIN), and so are those of `mistaken`: all play the case.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import close, shown
from fewgpu.workshop.grading.work import Work

Forward = Callable[[nn.Module, torch.Tensor], tuple[torch.Tensor, Any]]
Backward = Callable[[nn.Module, Any, torch.Tensor], torch.Tensor | None]
Pair = tuple[Forward, Backward]


@dataclass(frozen=True)
class Play:
    """A layer, as code, and the order in which micro-batches go forward and backward through it, like 'F0 F1 B1 B0'."""

    code: str
    inputs: tuple[torch.Tensor, ...]
    order: str = 'F0 B0'
    seed: int = 0
    frozen: str = ''    #: '0' if the parameters of layer[0] are frozen

    def layer(self) -> nn.Module:
        """A new one, always with the same weights; one that has a single weight has the weight 2."""
        torch.manual_seed(self.seed)
        layer = eval(self.code, {'nn': nn}).double()
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(not self.frozen or not name.startswith(self.frozen))
            if parameter.numel() == 1:
                nn.init.constant_(parameter, 2.0)
        return layer

    def gradient(self, i: int) -> torch.Tensor:
        """The one that comes for the output of micro-batch i: numbers that are not all alike."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            y = self.layer()(self.inputs[i].clone())
            torch.manual_seed(self.seed + 100 + i)
            return torch.full_like(y, 10.0) if y.numel() == 1 else torch.randn_like(y)


@dataclass(frozen=True)
class Part:
    """Something that came out: its kind (y, numbers, gradient, parameters, buffers), what it is, and the value."""

    kind: str
    label: str
    value: Any


def played(case: Play, pair: Pair, kinds: str) -> list[Part]:
    """What comes out, of these kinds, in the order in which it comes out. Raises whatever the functions raise."""
    layer, kept = case.layer(), {}
    gradients = {i: case.gradient(i) for i in range(len(case.inputs))}
    forward, backward = pair
    torch.manual_seed(case.seed + 1)
    parts: list[Part] = []
    for op in case.order.split():
        i, which = int(op[1:]), f'of micro-batch {op[1:]}' if 'F1' in case.order else ''
        if op[0] == 'F':
            y, kept[i] = two(forward(layer, case.inputs[i].clone()))
            parts.append(Part('y', f'y {which}', y.detach().clone() if isinstance(y, torch.Tensor) else y))
        else:
            gradient = backward(layer, kept.pop(i), gradients[i])
            parts.append(Part('gradient', f'gradient for x {which}', _copied(gradient)))
            parts += [Part('parameters', f'{name}.grad after {op}', _copied(parameter.grad))
                      for name, parameter in layer.named_parameters()]
        parts += [Part('buffers', f'{name} after {op}', _copied(buffer)) for name, buffer in layer.named_buffers()]
        parts.append(Part('numbers', f'the next random numbers after {op}', torch.rand(3)))
    return [part for part in parts if part.kind in kinds.split()]


def two(result: Any) -> tuple[torch.Tensor, Any]:
    """What forward returned, if it is what it should return."""
    if result is None:
        raise Failure(misconception='returns-nothing')
    if not isinstance(result, (tuple, list)) or len(result) != 2 or not isinstance(result[0], torch.Tensor):
        raise Failure('`forward` has to return two things: y, a tensor, and whatever backward needs.',
                      misconception='wrong-type')
    return tuple(result)


def explained(function: Callable, messages: dict[str, str], work: Work) -> Callable:
    """The learner's function; `messages` says which misconception is behind what torch says in an error."""
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except RuntimeError as error:
            for message, misconception in messages.items():
                if message in str(error):
                    raise Failure(f'(torch says: {str(error).splitlines()[0]})', misconception=misconception,
                                  lines=work.lines(error.__traceback__)) from error
            raise
    return call


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def alike(got: list[Part], wanted: list[Part]) -> bool:
    return difference(got, wanted) is None


def difference(got: list[Part], wanted: list[Part]) -> tuple[Part, Part] | None:
    """The first parts that differ by more than rounding."""
    return next(((mine, true) for mine, true in zip(got, wanted) if not close(mine.value, true.value)), None)


def told(case: Play, got: Any, wanted: list[Part]) -> str:
    """The case as a few lines: which layer, which order, and what is wrong."""
    details = f'\nlayer[{case.frozen}] is frozen' if case.frozen else ', weight 2' if '(1, 1, ' in case.code else ''
    ops = [f'{"forward" if op[0] == "F" else "backward"} {op[1:]}' for op in case.order.split()]
    head = f'layer = {case.code}{details}\n{", ".join(ops)}'
    if isinstance(got, BaseException):
        return head
    mine, true = difference(got, wanted)
    x = case.inputs[0]
    small = f'\nx = {x.tolist()}' if len(case.inputs) == 1 and x.numel() <= 4 else ''
    return f'{head}{small}\n{true.label.strip()}\nyours     {shown(mine.value)}\nexpected  {shown(true.value)}'


def plain_forward(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = x.requires_grad_(x.is_floating_point())
    y = layer(x.clone())
    return y.detach(), (x, y)


def plain_backward(layer: nn.Module, kept: Any, gradient: torch.Tensor) -> torch.Tensor | None:
    x, y = kept
    y.backward(gradient)
    return x.grad


PLAIN: Pair = plain_forward, plain_backward
