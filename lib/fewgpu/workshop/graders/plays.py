"""Layers put to the test: micro-batches go forward and backward through them in some order, and this is what comes out.

Who plays such a case is a stage, as in exercise 06; the pair of functions of exercise 07 plays it as a stage, too. What
should come out is what comes out of `Plain`, where torch's own graph waits for the backward.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any, Protocol

import torch
from torch import nn

from fewgpu.workshop.graders.complaints import explained
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.grading.work import Work


class Stage(Protocol):
    """Takes micro-batches, which it knows by their numbers, through its layers."""

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor: ...

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None: ...


MakeStage = Callable[[nn.Module], Stage]


class Plain:
    """A stage that does what it should. The wrong ones differ in one of its methods."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self.layer(x.clone())   # a layer may write over its input
        self.kept[i] = x, y
        return y.detach()

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        x, y = self.kept.pop(i)
        y.backward(gradient)
        return x.grad


def paired(forward: Callable[[nn.Module, torch.Tensor], tuple[torch.Tensor, Any]],
           backward: Callable[[nn.Module, Any, torch.Tensor], torch.Tensor | None]) -> MakeStage:
    """A stage of two functions: forward(layer, x) -> y, kept and backward(layer, kept, gradient) -> gradient for x."""
    class Paired:
        def __init__(self, layer: nn.Module) -> None:
            self.layer, self.kept = layer, {}

        def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
            result = forward(self.layer, x)
            if result is not None and not (isinstance(result, (tuple, list)) and len(result) == 2):
                raise Failure('`forward` has to return two things: y, a tensor, and whatever backward needs.',
                              misconception='wrong-type')
            y, self.kept[i] = result or (None, None)
            return y

        def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
            return backward(self.layer, self.kept.pop(i), gradient)

    return Paired


class RowsSeen(nn.Module):
    """Counts in a buffer the rows that go forward, and changes nothing: not only batch norm has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('rows', torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        return x


@dataclass(frozen=True, eq=False)
class Play:
    """A layer, as code, and the order in which micro-batches go forward and backward through it, like 'F0 F1 B1 B0'."""

    code: str
    inputs: tuple[torch.Tensor, ...]   #: of the forwards, one after the other
    order: str = 'F0 B0'
    seed: int = 0
    frozen: str = ''           #: '0' if the parameters of layer[0] are frozen
    has_grads: bool = False    #: are there gradients already?

    def layer(self) -> nn.Module:
        """A new one, always with the same weights; one that has a single weight has the weight 2."""
        torch.manual_seed(self.seed)
        layer = eval(self.code, {'nn': nn, 'RowsSeen': RowsSeen}).double()
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(not self.frozen or not name.startswith(self.frozen))
            if parameter.numel() == 1:
                nn.init.constant_(parameter, 2.0)
            if self.has_grads:
                parameter.grad = torch.ones_like(parameter)
        return layer

    def gradient(self, k: int) -> torch.Tensor:
        """The one that comes for what the forward number k has put out: numbers that are not all alike."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            y = self.layer()(self.inputs[k].clone())
            torch.manual_seed(self.seed + 100 + k)
            return torch.full_like(y, 10.0) if y.numel() == 1 else torch.randn_like(y)

    def __str__(self) -> str:
        details = f'\nlayer[{self.frozen}] is frozen' if self.frozen else ', weight 2' if '(1, 1, ' in self.code else ''
        details += '\nRowsSeen counts in a buffer the rows that go forward' if 'RowsSeen' in self.code else ''
        details += '\nits parameters have gradients already' if self.has_grads else ''
        ops = [f'{"forward" if op[0] == "F" else "backward"} {op[1:]}' for op in self.order.split()]
        x = self.inputs[0]
        small = f'\nx = {x.tolist()}' if len(self.inputs) == 1 and x.numel() <= 3 else ''
        return f'layer = {self.code}{details}\n{fill(", ".join(ops), 78)}{small}'


@dataclass(frozen=True)
class Part:
    """Something that came out: its kind (y, numbers, gradient, parameters, buffers), what it is, and the value."""

    kind: str
    label: str
    value: Any


def played(case: Play, make: MakeStage, kinds: str) -> list[Part]:
    """What comes out, of these kinds, in the order in which it comes out. Raises whatever the stage raises."""
    layer, gradients = case.layer(), {}
    coming = iter([(x.clone(), case.gradient(k)) for k, x in enumerate(case.inputs)])
    stage = make(layer)
    torch.manual_seed(case.seed + 1)
    parts: list[Part] = []
    for op in case.order.split():
        i, which = int(op[1:]), f' of micro-batch {op[1:]}' if 'F1' in case.order else ''
        if op[0] == 'F':
            x, gradients[i] = next(coming)
            y = stage.forward(i, x)
            if not isinstance(y, torch.Tensor):
                raise Failure(misconception='returns-nothing' if y is None else 'wrong-type')
            parts.append(Part('y', f'y{which}', y.detach().clone()))
        else:
            parts.append(Part('gradient', f'gradient for x{which}', _copied(stage.backward(i, gradients[i]))))
            parts += [Part('parameters', f'{name}.grad after {op}', _copied(parameter.grad))
                      for name, parameter in layer.named_parameters()]
        parts += [Part('buffers', f'{name} after {op}', _copied(buffer)) for name, buffer in layer.named_buffers()]
        parts.append(Part('numbers', f'the next random numbers after {op}', torch.rand(3)))
    return [part for part in parts if part.kind in kinds.split()]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _differing(got: list[Part], wanted: list[Part]) -> tuple[Part, Part] | None:
    """The first parts that differ by more than rounding."""
    return next(((mine, true) for mine, true in zip(got, wanted) if not close(mine.value, true.value)), None)


def is_right(case: Play, make: MakeStage, kinds: str) -> bool:
    """Does that come out what should?"""
    return _differing(played(case, make, kinds), played(case, Plain, kinds)) is None


def compare(work: Work, make: MakeStage, cases: Sequence[Play], kinds: str, *,
            suspects: Iterable[tuple[str, MakeStage]], complaints: Mapping[str, str], lines: Sequence[Line]) -> None:
    """Judge the learner's stage: does it do in all cases what the plain layer does?"""
    raised: dict[Play, type] = {}

    def answer(case: Play) -> list[Part]:
        try:
            with explained(work, complaints):
                return played(case, make, kinds)
        except Failure as failure:
            failure.lines = failure.lines or list(lines)
            raise
        except Exception as error:
            raised[case] = type(error)
            raise

    def suspected(wrong: MakeStage, case: Play) -> list[Part]:
        """What a wrong stage gives. That a number is not found in a store is explained by a KeyError alone."""
        try:
            return played(case, wrong, kinds)
        except Exception as error:
            if raised.get(case) is KeyError and type(error) is not KeyError:
                return []
            raise

    def tell(case: Play, got: Any, wanted: list[Part]) -> str:
        if isinstance(got, BaseException):
            return str(case)
        mine, true = _differing(got, wanted)
        return f'{case}\n{true.label}\nyours     {shown(mine.value)}\nexpected  {shown(true.value)}'

    judge(cases, answer, lambda case: played(case, Plain, kinds), tell=tell, lines=lines,
          same=lambda got, wanted: _differing(got, wanted) is None,
          suspects=[Suspect(name, partial(suspected, wrong)) for name, wrong in suspects])
