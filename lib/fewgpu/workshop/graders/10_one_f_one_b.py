"""Grader of exercise 10. Laws: the peak is counted; a step that ends, with few stashes, and in GPipe's time."""

from collections.abc import Callable
from numbers import Real
from random import Random
from typing import Any

from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.graders.rows import judge_rows
from fewgpu.workshop.graders.schedules import (CELL, Like, Rows, Sizes, are_rows, broken, least_makespan, makespan,
                                               missing, number, plain_rows)
from fewgpu.workshop.grading.work import Work

FORBIDDEN = 'fewgpu.schedule', 'fewgpu.simulate', 'torch.distributed.pipelining.schedules'

MISCONCEPTIONS = {
    'never-frees': 'the backwards free nothing: only forwards are counted, so the memory seems to grow to the end '
                   'of the step',
    'at-the-end': 'that is what is left at the end of the row; the peak is the most that there ever is, and that '
                  'is what has to fit into memory',
    'looks-before': 'the peak is looked up before the operation has changed it, so the last forward is not seen',
    'one-more': 'that is one more than is ever kept: a stash is there from its forward to its backward, and no '
                'longer',
    'longest-run': 'that is the longest run of forwards; what was kept before the run is still there',
    'gpipe': 'all forwards come before the first backward, as in GPipe: every stage keeps all micro-batches',
    'no-warm-up': 'no stage warms up: each micro-batch goes all the way and back before the next one starts, and '
                  'only one stage works at a time',
    'warm-up-short': 'the warm-up is one forward too short: a stage waits for a gradient while it could run one '
                     'more forward',
    'warm-up-long': 'the warm-up is one forward too long: the stage keeps a micro-batch more than it needs to be '
                    'busy',
    'warm-up-equal': 'all stages warm up alike, but the later a stage is, the sooner the gradients are back: it '
                     'needs fewer forwards, and the last needs none',
    'warm-up-reversed': 'the warm-up grows from stage to stage; it has to shrink: the first stage waits longest '
                        'for a gradient',
    'backward-first': 'after the warm-up the backward comes first, and it waits for a micro-batch that this stage '
                      'still holds back: the forward of the pair has to come first',
    'newest-first': 'the newest micro-batch is sent back first; its gradient has the longest way, and the oldest '
                    'is already there',
    'no-drain': 'the backwards of the warm-up are missing at the end: their gradients are lost',
    'beyond-last': 'the warm-up is longer than there are micro-batches: with few of them, some operations are of '
                   'micro-batches that do not exist',
    'from-one': 'micro-batches are counted from 1, and the first of them is number 0',
    'one-row': 'it is a single row, and has to be a list with one row for each stage',
    'idle-entries': 'idle time is written down: a row is an order, and a stage waits by itself until its input is '
                    'there',
}

HINTS = {
    'stashes': Hints(
        idea='Walk along the row with a counter. What makes it go up, and what down? Which of its values do you '
             'want?',
        place='`stashes`: two numbers in one loop: what is kept now, and the most so far. Compare them after the '
              'counter has changed.',
        outline='kept = most = 0\n'
                'for each operation: plus 1 for an F, minus 1 for a B; most = the larger of most and kept\n'
                'return most'),
    'legal': Hints(
        idea='Take the three rows of the docstring apart: a beginning of Fs, a middle of F B F B, an end of Bs. '
             'Whatever the lengths, each micro-batch has its F and its B once. And if there are fewer '
             'micro-batches than the beginning is long?',
        place='`one_f_one_b`: two counters are enough, the next forward and the next backward; each goes once '
              'from 0 to micro_batches.',
        outline='warm_up = as many as there are stages behind, but no more than micro_batches\n'
                'F0 ... of the warm-up\n'
                'as long as there are forwards left: the next F, the next B\n'
                'the Bs that are left'),
    'memory': Hints(
        idea='The last stage can run B0 right after F0: it keeps one. How many does the stage before it start '
             'until B0 comes back?',
        place='`one_f_one_b`: the warm-up of stage s. It ends so that, with the forward of the first pair, stages '
              '- s are kept.',
        outline='the warm-up of stage s: one forward for each stage behind it, stages - 1 - s\n'
                'then a forward and a backward in turn: what is kept goes up by one and down by one'),
    'least_time': Hints(
        idea='While the first micro-batch travels to the last stage and back, what could stage 0 do instead of '
             'waiting? How many forwards fit? And which gradient comes back first?',
        place='`one_f_one_b`: the length of the warm-up, and the order of the backwards (the oldest first).',
        outline='the warm-up of stage s: stages - 1 - s forwards\n'
                'then, for k = 0, 1, ...: F of warm-up + k, B of k'),
}


def sizes_to_try(random: Random) -> list[Sizes]:
    """Stages and micro-batches, fewest first: all small ones, and some large."""
    small = sorted(((n, m) for n in range(1, 6) for m in range(1, 8)), key=lambda sizes: (sum(sizes), sizes))
    return small + [(random.randrange(2, 10), random.randrange(1, 25)) for _ in range(6)]


def most_kept(row: list[str]) -> int:
    """By definition: the most micro-batches whose forward is among the first operations and whose backward is not."""
    def begun(kind: str, end: int) -> set[int]:
        return {number(cell) for cell in row[:end] if cell[0] == kind}
    return max(len(begun('F', end) - begun('B', end)) for end in range(1, len(row) + 1))


@check('the peak of what a stage keeps is counted', points=2)
def stashes(work: Work, random: Random) -> None:
    def random_row() -> list[str]:
        micro_batches, row, kept = iter(range(random.randrange(2, 8))), [], []
        while (i := next(micro_batches, None)) is not None:
            row.append(f'F{i}')
            kept.append(i)
            while kept and random.random() < 0.45:
                row.append(f'B{kept.pop(random.randrange(len(kept)))}')
        return row + [f'B{i}' for i in kept] * random.randrange(2)

    def count(answer: Any) -> Any:
        return answer.item() if hasattr(answer, 'item') and not isinstance(answer, Real) else answer

    def longest_run(row: list[str]) -> int:
        return max(map(len, ''.join(cell[0] for cell in row).split('B')))

    def kept_after(row: list[str]) -> int:
        return sum(1 if cell[0] == 'F' else -1 for cell in row)

    rows = [['F0'], ['F0', 'B0'], ['F0', 'F1'], ['F0', 'B0', 'F1'], ['F0', 'F1', 'B1', 'F2', 'B0', 'B2']]
    rows += [row.split() for row in ('F0 F1 F2 F3 B0 B1 B2 B3', 'F0 F1 B0 F2 F3 B1 B2 B3', 'F9 F10 F11 B10 B9 F12 B11')]
    rows += sorted((random_row() for _ in range(15)), key=len)
    judge(rows, lambda row: count(work.stashes(list(row))), most_kept, suspects=[
        Suspect('never-frees', lambda row: sum(cell[0] == 'F' for cell in row)),
        Suspect('at-the-end', kept_after),
        Suspect('looks-before', lambda row: max(kept_after(row[:end]) for end in range(len(row)))),
        Suspect('one-more', lambda row: most_kept(row) + 1),
        Suspect('longest-run', longest_run),
    ], tell=lambda row, got, wanted: f'stashes({row})\n'
        f'yours     {shown(got)}\nexpected  {shown(wanted)}', lines=work.definition('stashes'))


WarmUp = Callable[[int, int], int]   # of (stage, stages)


def rows_with(sizes: Sizes, warm_up: WarmUp, *, backward_first: bool = False,
              newest: tuple[bool, bool] = (False, False)) -> Rows:
    """What a learner's rows would be who has that warm-up. `newest`: sent back first, in turn and at the end."""
    rows = []
    for stage in range(sizes[0]):
        waiting, row = [], []
        warm = min(max(warm_up(stage, sizes[0]), 0), sizes[1])
        for i in range(sizes[1]):
            if i >= warm and backward_first:
                row.append(f'B{i - warm}')
            row.append(f'F{i}')
            waiting.append(i)
            if i >= warm:
                taken = waiting.pop(-1 if newest[0] else 0)
                row += [] if backward_first else [f'B{taken}']
        rows.append(row + [f'B{i}' for i in (reversed(waiting) if newest[1] else waiting)])
    return rows


def _warm_ups() -> list[Suspect]:
    """The wrong warm-ups; they break the law of time, or that of memory, or the step never ends."""
    wrong: list[tuple[str, WarmUp]] = [
        ('no-warm-up', lambda s, n: 0), ('warm-up-short', lambda s, n: n - 2 - s), ('warm-up-long', lambda s, n: n - s),
        ('warm-up-equal', lambda s, n: n - 1), ('warm-up-equal', lambda s, n: n), ('warm-up-reversed', lambda s, n: s),
        ('warm-up-reversed', lambda s, n: s + 1)]
    suspects = [Suspect(name, lambda sizes, warm_up=warm_up: rows_with(sizes, warm_up)) for name, warm_up in wrong]
    return [*suspects, *(Suspect('newest-first', lambda sizes, newest=newest: rows_with(
        sizes, lambda s, n: n - 1 - s, newest=newest))
                         for newest in ((True, True), (True, False), (False, True)))]


def expected(sizes: Sizes) -> list[str]:
    return [f'stage {s} | {" ".join(row)}' for s, row in enumerate(rows_with(sizes, lambda s, n: n - 1 - s))]


@check('every stage runs each forward and each backward once, and the step comes to an end', points=3)
def legal(work: Work, random: Random) -> None:
    def like(misconception: str, fits: Any, *, readable: bool = True) -> Suspect:
        return Suspect(misconception, lambda sizes: Like(lambda rows: (not readable or are_rows(rows) and bool(rows))
                                                         and bool(fits(rows, *sizes))))

    def no_drain(rows: Rows, n: int, m: int) -> bool:
        left = [[f'B{i}' for i in range(m - min(n - 1 - s, m), m)] for s in range(n)]
        return len(rows) == n and [missing(row, m) for row in rows] == left

    def without_idle(rows: Any, n: int, m: int) -> bool:
        busy = [[cell for cell in row if any(letter.isdigit() for letter in str(cell))] for row in rows]
        return busy != rows and not broken((n, m), busy)

    judge_rows('one_f_one_b', lambda *sizes: work.one_f_one_b(*sizes), sizes_to_try(random), broken, suspects=[
        like('from-one', lambda rows, n, m:
             all({number(cell) for cell in row} == set(range(1, m + 1)) for row in rows)),
        like('no-drain', no_drain),
        like('beyond-last', lambda rows, n, m: n > m and len(rows) == n and any(
            not 0 <= int(cell[1:]) < m for row in rows for cell in row), readable=False),
        like('one-row', lambda rows, n, m:
             isinstance(rows, list) and rows and all(CELL.fullmatch(cell) for cell in rows),
             readable=False),
        Suspect('backward-first', lambda sizes: rows_with(sizes, lambda s, n: n - 1 - s, backward_first=True)),
        like('idle-entries', without_idle, readable=False),
        *_warm_ups(),
    ], expected=expected, lines=work.definition('one_f_one_b'))


def heavy(sizes: Sizes, rows: Any) -> str:
    if found := broken(sizes, rows):
        return found
    for stage, row in enumerate(rows):
        kept, allowed = most_kept(row), min(sizes[1], sizes[0] - stage)
        if kept > allowed:
            enough = f'{allowed} {"is" if allowed == 1 else "are"} enough'
            return f'Stage {stage} keeps {kept} micro-batches at its peak, and {enough}.'
    return ''


@check('stage s of n keeps at most min(m, n - s) of m micro-batches', points=3, after=['legal'])
def memory(work: Work, random: Random) -> dict[str, str]:
    def all_forwards_first(rows: Rows) -> bool:
        return are_rows(rows) and not any('BF' in ''.join(cell[0] for cell in row) for row in rows)

    judge_rows('one_f_one_b', lambda *sizes: work.one_f_one_b(*sizes), sizes_to_try(random), heavy, suspects=[
        Suspect('gpipe', lambda sizes: Like(all_forwards_first)), *_warm_ups()],
        expected=expected, lines=work.definition('one_f_one_b'))
    peaks = [most_kept(row) for row in plain_rows(work.one_f_one_b(4, 16))]
    return {'kept at the peak': f'4 stages, 16 micro-batches: {", ".join(map(str, peaks))}; by GPipe: 16, 16, 16, 16'}


def slow(sizes: Sizes, rows: Any) -> str:
    if found := broken(sizes, rows):
        return found
    takes, least = makespan(rows, sizes[1]), least_makespan(sizes)
    return f"The step takes {takes:g} units of time, GPipe's takes {least:g}." if takes > least else ''


@check("the step takes no longer than GPipe's", points=2, after=['legal'])
def least_time(work: Work, random: Random) -> dict[str, str]:
    judge_rows('one_f_one_b', lambda *sizes: work.one_f_one_b(*sizes), sizes_to_try(random), slow, suspects=_warm_ups(),
               expected=expected, lines=work.definition('one_f_one_b'))
    takes = makespan(plain_rows(work.one_f_one_b(4, 16)), 16)
    return {'4 stages, 16 micro-batches': f'{takes:g} units of time; GPipe {least_makespan((4, 16)):g}; '
                                          f'one micro-batch after the other {4 * 16 * 3}'}
