"""Steps of a pipeline, for the grader of exercise 06: the right gradients, the calls of a step, and wrong steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

import torch
from torch import nn

from fewgpu.workshop.graders.plays import Plain
from fewgpu.workshop.grading.law import close

WIDTHS = 4, 3, 5, 2


@dataclass(frozen=True)
class StepCase:
    """A mini-batch in micro-batches of so many rows, for a model in so many stages."""

    stages: int
    rows: tuple[int, ...]
    seed: int
    is_integers: bool = False
    grads_before: bool = False

    def modules(self) -> list[nn.Module]:
        torch.manual_seed(self.seed)
        widths = WIDTHS[-self.stages - 1:]
        modules = [nn.Sequential(nn.Linear(a, b), nn.Tanh()).double() for a, b in zip(widths, widths[1:])]
        if self.is_integers:
            modules[0] = nn.Embedding(7, widths[1]).double()
        for module in modules if self.grads_before else ():
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
        return modules

    def batch(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Micro-batches and their targets."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.is_integers:
            x = torch.randint(7, (sum(self.rows),), generator=generator)
        else:
            x = torch.randn(sum(self.rows), WIDTHS[-self.stages - 1], generator=generator, dtype=torch.float64)
        target = torch.randn(sum(self.rows), WIDTHS[-1], generator=generator, dtype=torch.float64)
        return list(x.split(self.rows)), list(target.split(self.rows))

    def __str__(self) -> str:
        before = ', and gradients were there before' if self.grads_before else ''
        stages = '1 stage' if self.stages == 1 else f'{self.stages} stages'
        return f'{stages}, micro-batches of {", ".join(map(str, self.rows))} rows{before}'


def step_cases(random: Random) -> list[StepCase]:
    """Smallest first."""
    shapes = [(1, (2,)), (1, (1, 1)), (1, (2, 1)), (2, (1, 1)), (2, (2, 1)), (3, (1, 3)), (3, (2, 2, 1))]
    cases = [StepCase(stages, rows, random.randrange(10**6)) for stages, rows in shapes]
    for is_integers in (False, True):
        rows = tuple(random.randrange(1, 5) for _ in range(random.randrange(2, 5)))
        cases.append(StepCase(2, rows, random.randrange(10**6), is_integers, grads_before=True))
    return cases


def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of the squared distance."""
    return (output - target).square().sum(dim=1).mean()


Step = Callable[..., Any]


class Results(NamedTuple):
    """What a step returns, the gradients that it leaves, and the weights."""

    loss: Any
    gradients: list[Any]
    weights: list[torch.Tensor]


def results_of(step: Step, case: StepCase, make: Callable[[int, nn.Module], Any]) -> Results:
    modules = case.modules()
    value = step([make(index, module) for index, module in enumerate(modules)], *case.batch(), loss_fn)
    return _results(value, modules)


def _results(loss: Any, modules: list[nn.Module]) -> Results:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return Results(loss, [parameter.grad for parameter in parameters], [each.detach() for each in parameters])


def in_one_piece(case: StepCase) -> Results:
    """The whole mini-batch in one piece."""
    modules = case.modules()
    xs, targets = case.batch()
    loss = loss_fn(nn.Sequential(*modules)(torch.cat(xs)), torch.cat(targets))
    loss.backward()
    return _results(loss.item(), modules)


near = partial(close, tolerance=1e-6)   # a share of the rows may have been a float32


def broken(mine: Results, wanted: Results) -> tuple[str, str, str]:
    """What is wrong beside the gradients: a misconception, what was found, and what should be; '' if nothing is."""
    has_graph = isinstance(mine.loss, torch.Tensor) and mine.loss.requires_grad
    loss = mine.loss.detach() if has_graph else mine.loss
    if loss is None:
        return 'returns-nothing', 'None', f'{wanted.loss:.6f}'
    if not near(float(loss), wanted.loss):
        return 'wrong-loss', f'{float(loss):.6f}', f'{wanted.loss:.6f}'
    if not close(mine.weights, wanted.weights):
        return 'weights-changed', 'the weights are others than before', 'the same weights'
    return ('loss-with-graph', f'{loss.item():.6f}, with its graph', 'a number') if has_graph else ('', '', '')


def wrong_step(*, share: Callable[[int, Sequence[int]], float],
               after: Callable[[Sequence[int]], float] = lambda rows: 1.0, clears: bool = False,
               clears_between: bool = False, ones: bool = False) -> Callable[[StepCase], list[Any]]:
    """What gradients it leaves. `share` weighs a loss, by its rows and those of all; `after` divides the gradients."""
    def step(stages: list[Plain], xs: list[torch.Tensor], targets: list[torch.Tensor], loss_fn: Step) -> None:
        parameters = [parameter for stage in stages for parameter in stage.layer.parameters()]
        rows = list(map(len, targets))
        for i, (x, target) in enumerate(zip(xs, targets)):
            for parameter in parameters if clears and i == 0 or clears_between else ():
                parameter.grad = None
            for stage in stages:
                x = stage.forward(i, x)
            x.requires_grad_()
            (loss_fn(x, target) * share(rows[i], rows)).backward()
            gradient = torch.ones_like(x) if ones else x.grad
            for stage in reversed(stages):
                gradient = stage.backward(i, gradient)
        for parameter in parameters:
            parameter.grad /= after(rows)

    return lambda case: results_of(step, case, lambda index, module: Plain(module)).gradients


@dataclass
class Log:
    """The calls of all stages, in their order: kind, stage, micro-batch; and what travelled between them."""

    calls: list[tuple[str, int, Any]] = field(default_factory=list)
    returned: dict[tuple[str, int, Any], Any] = field(default_factory=dict)
    strangers: list[tuple[str, int, Any]] = field(default_factory=list)   # calls that were given something else

    def watch(self, kind: str, stage: int, method: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """Call a method of a stage, and write it down."""
        i, value = [*given, *named.values()][:2]
        self.calls.append((kind, stage, i))
        sender = (kind, stage + (-1 if kind == 'F' else 1), i)
        if sender in self.returned and not _same(self.returned[sender], value):
            self.strangers.append((kind, stage, i))
        self.returned[kind, stage, i] = answer = method(*given, **named)
        return answer

    def spied(self, stage_class: type, index: int, module: nn.Module) -> Any:
        """A stage of that class which notes its calls here."""
        log = self

        class Stage(stage_class):
            def forward(self, *given: Any, **named: Any) -> Any:
                return log.watch('F', index, super().forward, given, named)

            def backward(self, *given: Any, **named: Any) -> Any:
                return log.watch('B', index, super().backward, given, named)

        return Stage(module)

    def fault(self, case: StepCase) -> tuple[str, str]:
        """What is wrong with the calls so far: (misconception, a sentence); ('', '') if nothing is."""
        place = {call: at for at, call in enumerate(self.calls)}
        last_forward = max((at for at, call in enumerate(self.calls) if call[0] == 'F'), default=0)
        for at, (kind, stage, i) in enumerate(self.calls):
            before = (kind, stage + (-1 if kind == 'F' else 1), i)
            if 0 <= before[1] < case.stages and place.get(before, len(place)) > at:
                return ('stage-order' if kind == 'B' else '',
                        f'{kind}{i} of stage {stage} comes before {kind}{i} of stage {before[1]}.')
            if (kind, stage, i) in self.strangers:
                return ('wrong-gradient' if kind == 'B' else '',
                        f'{kind}{i} of stage {stage} is not given what {kind}{i} of stage {before[1]} has returned.')
            if kind == 'B' and at < last_forward:
                kind, later, j = self.calls[last_forward]
                return 'one-at-a-time', f'B{i} of stage {stage} comes before F{j} of stage {later}.'
        return '', ''

    def missing(self, case: StepCase) -> tuple[str, str]:
        """As `fault`, if a call is missing or comes twice."""
        if not self.calls:
            return 'past-the-stages', ''
        for stage in range(case.stages):
            for kind, what in (('F', 'forwards'), ('B', 'backwards')):
                numbers = [i for k, s, i in self.calls if (k, s) == (kind, stage)]
                if len(numbers) != len(case.rows) or len(set(numbers)) != len(numbers):
                    which = f'of the micro-batches {", ".join(map(str, numbers))}' if numbers else 'of no micro-batch'
                    return '', f'Stage {stage} has {what} {which}.'
        return '', ''

    def rows(self, stages: int) -> list[list[str]]:
        """What each stage has done, as a schedule."""
        return [[f'{kind}{i}' for kind, at, i in self.calls if at == stage] for stage in range(stages)]


def _same(one: Any, other: Any) -> bool:
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and torch.equal(one.detach(), other.detach())
