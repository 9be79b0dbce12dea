"""All plans of small clusters, the best of them, and those that a mistaken search takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from random import Random
from typing import Any

from fewgpu.workshop.graders import plan_costs
from fewgpu.workshop.graders.plan_costs import draw_model
from fewgpu.workshop.grading.law import Law, Like, Suspect, shown
from fewgpu.workshop.practice.cluster import Cluster, Model, Plan
from fewgpu.workshop.practice.plain import number

CLOSE = 1 + 1e-9


@dataclass(frozen=True)
class Task:
    model: Model
    cluster: Cluster
    batch: int

    def memory(self, plan: Plan) -> float:
        return plan_costs.memory(plan_costs.Case(self.model, self.cluster, plan, self.batch))

    def seconds(self, plan: Plan) -> float:
        return plan_costs.seconds(plan_costs.Case(self.model, self.cluster, plan, self.batch))

    def fits(self, plan: Plan) -> bool:
        return self.memory(plan) <= self.cluster.memory * CLOSE


@cache
def legal(task: Task) -> list[Plan]:
    """All that could be, whether they fit the memory or not."""
    return [Plan(depth, width, b, recompute) for depth in range(1, min(task.model.blocks, task.cluster.devices) + 1)
            for width in range(1, task.cluster.devices // depth + 1) if task.batch % width == 0
            for b in range(1, task.batch // width + 1) if task.batch // width % b == 0 for recompute in (False, True)]


@cache
def possible(task: Task) -> list[Plan]:
    return [plan for plan in legal(task) if task.fits(plan)]


@cache
def best(task: Task) -> Plan | None:
    return min(possible(task), key=task.seconds, default=None)


def tasks(random: Random) -> list[Task]:
    """Smallest first; among them some for which nothing fits."""
    found = []
    for devices, blocks, batch in (
            (1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2), (2, 3, 4), (3, 3, 6), (4, 4, 8), (4, 6, 6), (6, 5, 12),
            (8, 8, 16), (5, 12, 7), (7, 9, 12), (8, 12, 24), (9, 6, 18), (12, 7, 24), (12, 30, 20), (16, 16, 32),
            (32, 8, 36)):
        for scale in (0.0, 0.1, 0.35, 0.7):
            task = Task(replace(draw_model(random, blocks=blocks), boundary=float(random.choice((1, 4, 30)))),
                        Cluster(devices, 1e9, float(random.choice((1, 4, 20)))), batch)
            sizes = sorted(map(task.memory, legal(task)))
            limit = sizes[0] - 1 if scale == 0.0 else sizes[int(scale * (len(sizes) - 1))]
            found.append(replace(task, cluster=replace(task.cluster, memory=float(limit))))
    return found


def read(answer: Any) -> Any:
    """A plan, also from a tuple of its four parts; numbers are plain."""
    if type(answer) in (tuple, list) and len(answer) == 4:
        answer = Plan(*answer)
    if all(hasattr(answer, part) for part in ('depth', 'width', 'micro_batch', 'recompute')):
        return Plan(number(answer.depth), number(answer.width), number(answer.micro_batch), bool(answer.recompute))
    return answer


def impossible(task: Task, got: Any) -> str:
    """Why the answer is no possible plan, in a sentence; '' if it is one, or None where there is none."""
    if got is None:
        return 'There is a possible plan.' if possible(task) else ''
    if not isinstance(got, Plan):
        return f'The answer is no Plan, but a {type(got).__name__}.'
    if not all(isinstance(part, int) and part > 0 for part in (got.depth, got.width, got.micro_batch)):
        return 'Depth, width and micro_batch are whole numbers from 1 on.'
    if got.depth > task.model.blocks:
        return f'{task.model.blocks} blocks are not enough for {got.depth} stages.'
    if got.depth * got.width > task.cluster.devices:
        return f'That takes {got.depth * got.width} devices, and there are {task.cluster.devices}.'
    if task.batch % (got.width * got.micro_batch):
        return f'{got.width} replicas times {got.micro_batch} samples do not divide a batch of {task.batch}.'
    if not task.fits(got):
        return f'It needs {task.memory(got):g} bytes of a device, which has {task.cluster.memory:g}.'
    return ''


def slower(task: Task, got: Any) -> str:
    """Why the answer is not the best plan, in a sentence; '' if it is."""
    if found := impossible(task, got):
        return found
    wanted = best(task)
    if wanted is None or task.seconds(got) <= task.seconds(wanted) * CLOSE:
        return ''
    return f'It takes {task.seconds(got):g} seconds, and there is one that takes {task.seconds(wanted):g}.'


def told(task: Task, got: Any, _: Law) -> str:
    figures = ', '.join(f'{name}={value:g}' for name, value in vars(task.model).items())
    first = figures.rfind(', ', 0, 66) + 1
    lines = [f'model   {figures[:first]}', f'        {figures[first:].strip()}',
             'cluster ' + ', '.join(f'{name}={value:g}' for name, value in vars(task.cluster).items()),
             f'best(model, cluster, {task.batch})', f'yours     {_priced(task, got)}',
             f'expected  {_priced(task, best(task))}']
    return '\n'.join(lines)


def _priced(task: Task, plan: Any) -> str:
    if not isinstance(plan, Plan) or not isinstance(plan.depth, int):
        return shown(plan)
    if task.batch % (plan.width * plan.micro_batch) or plan.depth > task.model.blocks:
        return str(plan)
    return f'{plan}:\n          {task.seconds(plan):g} s, {task.memory(plan):g} bytes'


def takes(misconception: str, price: Callable[[Task, Plan], Any],
          among: Callable[[Task, Plan], bool] | None = None) -> Suspect:
    """It takes a plan of the least price, `among` some only; None where there is none of them."""
    def answer(task: Task) -> Like:
        some = [plan for plan in possible(task) if among is None or among(task, plan)]
        least = min((price(task, plan) for plan in some), default=None)
        return Like(lambda got: got is None if least is None else got in some and _near(price(task, got), least))
    return Suspect(misconception, answer)


def _near(one: Any, other: Any) -> bool:
    return one == other if isinstance(one, tuple) else abs(one - other) <= 1e-9 * max(abs(other), 1.0)


def like(misconception: str, fits: Callable[[Task, Any], bool]) -> Suspect:
    """Its answers look like that."""
    return Suspect(misconception, lambda task: Like(lambda got: fits(task, got)))


def is_two_to(number: int) -> bool:
    return number & (number - 1) == 0


def nothing(task: Task) -> Like:
    """It knows what to do only where something fits."""
    if not possible(task):
        raise ValueError
    return Like(lambda got: not impossible(task, got))


SHORT = [
    takes('just-fits', Task.seconds, lambda task, plan: task.memory(plan) < task.cluster.memory),
    takes('one-short', Task.seconds, lambda task, plan: plan.depth < task.model.blocks),
    takes('one-short', Task.seconds, lambda task, plan: (
        plan.depth < min(task.model.blocks, task.cluster.devices // plan.width))),
    takes('one-short', Task.seconds, lambda task, plan: plan.depth < task.cluster.devices),
    takes('one-short', Task.seconds, lambda task, plan: plan.width < task.cluster.devices),
    takes('one-short', Task.seconds, lambda task, plan: plan.depth * plan.width < task.cluster.devices),
    takes('one-short', Task.seconds, lambda task, plan: plan.micro_batch < task.batch),
    takes('one-short', Task.seconds, lambda task, plan: plan.micro_batch * plan.width < task.batch),
]
ONLY = [
    takes('no-recompute', Task.seconds, lambda task, plan: not plan.recompute),
    takes('always-recompute', Task.seconds, lambda task, plan: plan.recompute),
    takes('smallest-micro-batch', Task.seconds, lambda task, plan: plan.micro_batch == 1),
    takes('all-devices', Task.seconds, lambda task, plan: plan.depth * plan.width == task.cluster.devices),
    *(takes('powers-of-two', Task.seconds, lambda task, plan, parts=parts: all(
        is_two_to(getattr(plan, part)) for part in parts)) for parts in (
            ('depth', 'width'), ('depth', 'width', 'micro_batch'), ('micro_batch',), ('depth',), ('width',))),
    *(takes('divides-devices', Task.seconds, lambda task, plan, parts=parts: all(
        task.cluster.devices % getattr(plan, part) == 0 for part in parts)) for parts in (
            ('depth',), ('width',), ('depth', 'width'))),
    takes('whole-stages', Task.seconds, lambda task, plan: task.model.blocks % plan.depth == 0),
]
"""They leave out plans that are possible, and find none where only those are."""

IMPOSSIBLE = [
    like('nothing-fits', lambda task, got: got is not None and not possible(task)), Suspect('nothing-fits', nothing),
    like('ignores-memory', lambda task, got: got in legal(task) and not task.fits(got)),
    like('too-many-devices', lambda task, got: isinstance(got, Plan) and got.depth * got.width > task.cluster.devices),
    like('too-deep', lambda task, got: isinstance(got, Plan) and got.depth > task.model.blocks),
    like('does-not-divide', lambda task, got: isinstance(got, Plan) and task.batch % (got.width * got.micro_batch) > 0),
    *SHORT, *ONLY,
    like('gives-up', lambda task, got: got is None),
]
"""What explains a plan that cannot be, or that there is none: one kind of answer, wherever it is wrong."""

SLOWER = [
    *SHORT, *ONLY,
    takes('least-memory', Task.memory), takes('most-memory', lambda task, plan: -task.memory(plan)),
    takes('slowest', lambda task, plan: -task.seconds(plan)),
    takes('deepest', lambda task, plan: (-plan.depth, task.seconds(plan))),
    takes('widest', lambda task, plan: (-plan.width, task.seconds(plan))),
    *(takes('first-that-fits', lambda task, plan, order=order: tuple(getattr(plan, part) for part in order))
      for order in permutations(('depth', 'width', 'micro_batch', 'recompute'))),
    takes('deepest', lambda task, plan: (-plan.depth,)), takes('widest', lambda task, plan: (-plan.width,)),
]


class TooManySteps(Exception):
    """More than are allowed."""


class Counted(int):
    """A number whose divisions and products are counted; what comes out is counted, too."""

    left = 0   # how many are still allowed, of all of them together


def _counted(name: str) -> Callable[[Counted, Any], Any]:
    plain = getattr(int, name)

    def operation(self: Counted, other: Any) -> Any:
        Counted.left -= 1
        if Counted.left < 0:
            raise TooManySteps
        result = plain(self, other)
        return Counted(result) if type(result) is int else result
    return operation


for _name in ('__mod__', '__floordiv__', '__mul__', '__rmul__', '__rmod__', '__rfloordiv__', '__truediv__', '__lt__',
              '__le__', '__gt__', '__ge__', '__divmod__'):
    setattr(Counted, _name, _counted(_name))
