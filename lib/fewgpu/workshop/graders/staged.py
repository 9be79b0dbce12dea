"""What the grader of exercise 06 puts to the test: one stage, in any order of micro-batches, beside the plain model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.grading.grader import Failure


class RightStage:
    """One that does what it should. The wrong ones differ in one of its methods."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().requires_grad_() if x.is_floating_point() else x

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        y = self.module(x)
        self.kept[i] = x, y
        return y.detach()

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        x, y = self.kept.pop(i)
        y.backward(gradient)
        return x.grad


MakeStage = Callable[[nn.Module], Any]


class Crowd:
    """Several stages that are made one after the other and used in turn, of which the first is looked at."""

    def __init__(self, make: MakeStage, module: nn.Module) -> None:
        self._stages = [make(module), make(nn.Identity()), make(nn.Identity())]

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return [stage.forward(i, x) for stage in self._stages][0]

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        return self._stages[0].backward(i, gradient)


@dataclass(frozen=True)
class Order:
    """Operations of one stage, F0 F1 B1 B0 say, and its kind: float inputs, or integers."""

    operations: tuple[str, ...]
    seed: int
    is_integers: bool = False
    grads_before: bool = False   #: are there gradients already?

    def module(self) -> nn.Module:
        torch.manual_seed(self.seed)
        first = nn.Embedding(7, 3) if self.is_integers else nn.Linear(4, 3)
        module = nn.Sequential(first, nn.Tanh(), nn.Linear(3, 2)).double()
        if self.grads_before:
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
        return module

    def input(self, at: int, i: int) -> torch.Tensor:
        """What micro-batch i is when its forward is operation number `at`."""
        generator = torch.Generator().manual_seed(self.seed + 100 * at + i)
        rows = 1 + (i + at) % 3
        if self.is_integers:
            return torch.randint(7, (rows,), generator=generator)
        return torch.randn(rows, 4, generator=generator, dtype=torch.float64)

    def gradient(self, at: int, rows: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 100 * at + 7)
        return torch.randn(rows, 2, generator=generator, dtype=torch.float64)

    def __str__(self) -> str:
        return ' '.join(self.operations) + (', integers' if self.is_integers else '')


def received(x: torch.Tensor | None) -> torch.Tensor | None:
    """What arrives at the other end of the wire, which carries bare numbers."""
    return x if x is None else x.detach().clone()


def drive(make: MakeStage, order: Order) -> list[Any]:
    """What a stage returns from every operation, and the gradients of its parameters in the end."""
    module = order.module()
    stage, rows, results = make(module), {}, []
    for at, operation in enumerate(order.operations):
        i = int(operation[1:])
        if operation[0] == 'F':
            x = order.input(at, i)
            rows[i] = len(x)
            y = stage.forward(i, x)
            if isinstance(y, torch.Tensor) and y.grad_fn is not None:
                raise Failure(misconception='graph-crosses',
                              case=f'one stage: {order}\nwhat {operation} returns has the grad_fn {y.grad_fn.name()}')
            results.append(received(y))
        else:
            results.append(received(stage.backward(i, order.gradient(at, rows[i]))))
    return results + [parameter.grad for parameter in module.parameters()]


def by_the_plain_model(order: Order) -> list[Any]:
    """The same from torch's own backward, micro-batch by micro-batch."""
    module, results, on_their_way = order.module(), [], {}
    for at, operation in enumerate(order.operations):
        i = int(operation[1:])
        if operation[0] == 'F':
            x = order.input(at, i)
            x = x if order.is_integers else x.requires_grad_()
            on_their_way[i] = x, module(x)
            results.append(on_their_way[i][1].detach())
        else:
            x, y = on_their_way[i]
            (y * order.gradient(at, len(y))).sum().backward()
            results.append(x.grad)
    return results + [parameter.grad for parameter in module.parameters()]


def first_difference(order: Order, got: Sequence[Any], wanted: Sequence[Any],
                     same: Callable[[Any, Any], bool]) -> tuple[str, Any, Any]:
    """The first result that is wrong: what it is, yours, expected."""
    names = [f'what {operation} returns' for operation in order.operations]
    names += [f'.grad of {name}' for name, _ in order.module().named_parameters()]
    for name, yours, expected in zip(names, got, wanted):
        if not same(yours, expected):
            return name, yours, expected
    return 'nothing', None, None


def orders(random: Random) -> list[Order]:
    """Of several micro-batches, smallest first: one after the other, GPipe's, 1F1B's, two steps, and random ones."""
    fixed = ['F0 B0 F1 B1', 'F0 F1 B1 B0', 'F0 F1 B0 B1', 'F0 F1 F2 B0 B2 B1', 'F1 F0 B1 B0', 'F0 F1 B0 F2 B1 F3 B2 B3',
             'F0 F1 B1 B0 F0 F1 B1 B0']
    chosen = [Order(tuple(text.split()), random.randrange(10**6)) for text in fixed]
    for is_integers in (False, True, False):
        chosen.append(Order(_shuffled(random), random.randrange(10**6), is_integers, grads_before=True))
    return chosen


def _shuffled(random: Random) -> tuple[str, ...]:
    waiting, on_their_way, operations = list(range(5)), [], []
    random.shuffle(waiting)
    while waiting or on_their_way:
        if waiting and (not on_their_way or random.random() < 0.6):
            on_their_way.append(waiting.pop())
            operations.append(f'F{on_their_way[-1]}')
        else:
            operations.append(f'B{on_their_way.pop(random.randrange(len(on_their_way)))}')
    return tuple(operations)
