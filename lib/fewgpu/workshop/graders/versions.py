"""Weight versions, counted along schedules that never flush: how many updates come before a forward."""

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from fewgpu.schedule import Op, pipedream, two_bw
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import number
from fewgpu.workshop.practice.rows import COLUMNS

Case = tuple[int, int, int, int]   # stages, stage, micro-batch, micro-batches of an update


def cases(random: Random, *, grouped: bool = False) -> list[Case]:
    """Smallest first; an update after so many micro-batches as there are stages, or more."""
    found = [(stages, stage, i, stages)
             for stages in (1, 2, 3, 4) for stage in range(stages) for i in range(3 * stages)]
    for _ in range(30):
        stages = random.randrange(1, 9)
        found.append((stages, random.randrange(stages), random.randrange(40), stages + random.randrange(4) * grouped))
    # In a group of a single stage the newest version is always there: what 2BW avoids is not to be seen in it.
    return sorted(found, key=lambda case: (grouped and case[0] == 1, case[0], case[3], case[2]))


@cache
def row(case: Case, *, grouped: bool = False) -> list[Op]:
    """What the case's stage runs, a little longer than to the forward of its micro-batch."""
    stages, stage, i, every = case
    groups = (i + 2 * stages) // every + 1
    schedule = two_bw(stages, groups * every, update_every=every) if grouped else pipedream(stages, groups * every)
    return list(schedule.rows[stage])


def updates_before(row: list[Op], micro_batch: int) -> int:
    """How many updates the row has had when that forward runs."""
    kinds = [(op.kind, op.micro_batch) for op in row]
    return sum(kind == 'U' for kind, _ in kinds[:kinds.index(('F', micro_batch))])


def stashed(case: Case) -> int:
    return updates_before(row(case), case[2])


def synchronous(case: Case) -> int:
    """The version of stage 0."""
    stages, _, i, every = case
    return stashed((stages, 0, i, every))


def double_buffered(case: Case) -> int:
    """The newest of the last stage, which no update reaches between the forwards of a group, but for one."""
    stages, _, i, every = case
    last = (stages, stages - 1, i, every)
    return max(0, updates_before(row(last, grouped=True), i) - 1)


def told(rule: str) -> Callable[..., str]:
    """How a case is shown."""
    def tell(case: Case, got: object, wanted: int) -> str:
        stages, stage, i, every = case
        last = f', {every}' if rule == '2bw' else ''
        return f'version({rule!r}, {stages}, {stage}, {i}{last})\nyours     {shown(got)}\nexpected  {wanted}'
    return tell


def drawn(*, grouped: bool = False, only: int | None = None) -> Callable[..., str]:
    """The rows of all stages, the forward of the micro-batch in brackets, and as many of the updates as count."""
    def draw(case: Case, got: object, wanted: int) -> str:
        stages, stage, i, every = case
        lines = [f'stage {s} | {_around(row((stages, s, i, every), grouped=grouped), i)}'
                 for s in range(stages) if only is None or s in (only, stage)]
        return '\n'.join([*lines, '', 'U1 makes version 1, U2 makes version 2, and so on'])
    return draw


def _around(row: list[Op], micro_batch: int) -> str:
    """The cells of a row up to a little behind that forward, as many as fit a line."""
    words = list(_words(row, micro_batch))
    here = next(index for index, word in enumerate(words) if word[0] == '[')
    words = words[:here + 6]
    first = 0
    while len(text := ' '.join(['...'] * (first > 0) + words[first:])) > COLUMNS - len('stage 0 | '):
        first += 1
    return text


def _words(row: list[Op], micro_batch: int) -> Iterator[str]:
    made = 0
    for op in row:
        made += op.kind == 'U'
        cell = f'U{made}' if op.kind == 'U' else f'{op.kind}{op.micro_batch}'
        yield f'[{cell}]' if (op.kind, op.micro_batch) == ('F', micro_batch) else cell


def judge_version(work: Work, rule: str, cases: list[Case], truth: Callable[[Case], int], suspects: list[Suspect],
                  picture: Callable[..., str]) -> None:
    """Does the learner's `version` agree with the truth by this rule?"""
    def answer(case: Case) -> object:
        return number(work.version(rule, *case) if rule == '2bw' else work.version(rule, *case[:3]))

    judge(cases, answer, truth, suspects=suspects, tell=told(rule), picture=picture,
          lines=work.definition('version'))


def guess(misconception: str, rule: Callable[[int, int, int, int], float]) -> Suspect:
    """`rule(n, s, i, m)` is the version that it takes; never below 0, unless the misconception is just that."""
    return Suspect(misconception, lambda case: rule(*case) if misconception == 'negative' else max(0, rule(*case)))
