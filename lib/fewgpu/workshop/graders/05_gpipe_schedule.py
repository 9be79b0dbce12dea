"""Grader of exercise 05. Laws: every forward as early as can be; a step that ends, in the least time; the bubble."""

from fractions import Fraction
from numbers import Real
from random import Random
from typing import Any

from fewgpu.schedule import one_f_one_b
from fewgpu.workshop.graders.cycles import beyond, cycles_of, first_cycles, grid_of, tables
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.graders.rows import judge_rows
from fewgpu.workshop.graders.schedules import (CELL, Like, Rows, Sizes, alike, are_rows, broken, least_makespan,
                                               makespan, missing, number, plain_rows)
from fewgpu.workshop.grading.work import Work

FORBIDDEN = ('fewgpu.schedule', 'fewgpu.simulate', 'torchgpipe.pipeline.clock_cycles',
             'torch.distributed.pipelining.schedules')

MISCONCEPTIONS = {
    'one-at-a-time': 'only one stage works in a cycle: that is model parallelism, and a pipeline is there to have '
                     'all stages work at the same time',
    'no-fill': 'all stages begin in the first cycle, but a stage has nothing to work on before the one in front '
               'of it has run the micro-batch',
    'no-drain': 'the cycles end when stage 0 has run its last micro-batch, and the stages behind it still have '
                'work to do',
    'one-cycle-short': 'the last cycle is missing, and with it the last forward of the last stage',
    'empty-cycle': 'there are cycles in which nothing runs: stages + micro_batches - 1 of them are enough',
    'out-of-range': 'some cycles name micro-batches or stages that do not exist: at the start and at the end not '
                    'all stages have work',
    'pair-swapped': 'stages and micro-batches are exchanged: a pair is (stage, micro-batch)',
    'flat': 'it is one list of pairs, and has to be a list of cycles, each a list of pairs: or nobody knows what '
            'runs together',
    'from-one': 'stages or micro-batches are counted from 1, and the first of each is number 0',
    'no-backwards': 'there are no backwards: without them nothing is learned',
    'one-short': 'a loop over the micro-batches stops one too early, as range(m - 1, 0, -1) does, which never '
                 'comes to 0',
    'by-cycle': 'it is a list by clock cycles, and has to be a list with one row for each stage',
    'one-row': 'it is a single row, and has to be a list with one row for each stage',
    'by-micro-batch': 'there is one row for each micro-batch, and has to be one for each stage',
    'idle-entries': 'idle time is written down: a row is an order, and a stage waits by itself until its input is '
                    'there',
    'stage-for-micro-batch': 'the operations are numbered by their stage: F0 is the forward of micro-batch 0, on '
                             'every stage',
    'spelling': 'an operation is not spelled as in the docstring: F or B and the number of the micro-batch, as in '
                'F0',
    'no-pipeline': 'the backward of a micro-batch comes right after its forward, so each micro-batch goes all the '
                   'way and back before the next one starts: only one stage works at a time',
    'mixed': 'there are backwards between the forwards: GPipe runs all forwards first (exercise 10 is about not '
             'doing so)',
    'forwards-reversed': 'the forwards do not begin with micro-batch 0: the docstring asks for the order 0, 1, 2, '
                         '...',
    'orders-differ': 'the stages run their backwards in different orders: a stage then waits for a gradient that '
                     'comes late',
    'to-work': 'the idle time is divided by the time of work, (n - 1) / m; it is a share of the whole step, idle '
               'time included',
    'busy-share': 'that is the share in which a stage works; the bubble is what is left of 1',
    'idle-time': 'that is a number of idle cycles; the bubble is their share of all cycles',
    'bubble-swapped': 'stages and micro-batches are exchanged in the formula: more stages make the bubble larger, '
                      'more micro-batches smaller',
    'off-by-one': 'the formula is off by one: with a single stage there is no bubble, and the step has n + m - 1 '
                  'cycles',
    'percent': 'that is a percentage; the bubble is a share between 0 and 1',
    'rounded': 'the share is rounded: leave it as it is',
}

HINTS = {
    'clock_cycles': Hints(
        idea='Draw a table: a row a stage, a column a cycle. Stage 0 runs micro-batch 0 in cycle 0. When does '
             'stage 1 run it? And stage s? Which number is the same in all cells of a column?',
        place='`clock_cycles`: in cycle t, stage s runs micro-batch t - s, if there is such a micro-batch. How '
              'many cycles are there until the last stage has run the last micro-batch?',
        outline='for each cycle t from 0, stages + micro_batches - 1 of them:\n'
                '    collect (s, t - s) for every stage s with 0 <= t - s < micro_batches'),
    'legal': Hints(
        idea='Think of one stage only: what does it do from the first to the last of its work? Then ask what '
             'another stage does otherwise. (The waiting comes by itself.)',
        place='`gpipe`: one row is all the Fs, counting up, and then all the Bs. There are as many rows as stages.',
        outline='forwards: F0, F1, ... to micro_batches - 1\n'
                'backwards: the Bs of the same numbers, each exactly once\n'
                'a row: forwards, then backwards; make one for each stage'),
    'least_time': Hints(
        idea='A gradient comes from the stage behind. What if that stage has started with another micro-batch '
             'than the one you wait for?',
        place='`gpipe`: compare the backwards in the rows of two stages.',
        outline='choose one order of the backwards\n'
                'use the same for all stages'),
    'bubble': Hints(
        idea='Look at the row of one stage in the table of clock cycles: how many of its cells are empty, and how '
             'many cells has it?',
        place='`bubble`: stages + micro_batches - 1 cycles, and a stage works in micro_batches of them.',
        outline='cycles = stages + micro_batches - 1\n'
                'idle = cycles - micro_batches\n'
                'return idle / cycles'),
}


def sizes_to_try(random: Random) -> list[Sizes]:
    """Stages and micro-batches, fewest first: all small ones, and some large."""
    small = sorted(((n, m) for n in range(1, 6) for m in range(1, 7)), key=lambda sizes: (sum(sizes), sizes))
    return small + [(random.randrange(2, 10), random.randrange(2, 25)) for _ in range(6)]


@check('every forward runs in the first cycle in which it can', points=3)
def clock_cycles(work: Work, random: Random) -> None:
    def spread(at: Any) -> Any:   # a suspect that runs (s, i) in cycle at(s, i, n, m)
        return lambda sizes: grid_of({(s, i): at(s, i, *sizes) for s in range(sizes[0]) for i in range(sizes[1])})

    def off(first: int, second: int) -> Any:
        return lambda sizes: [sorted((s + first, i + second) for s, i in cycle) for cycle in first_cycles(sizes)]

    judge(sizes_to_try(random), lambda sizes: cycles_of(work.clock_cycles(*sizes)), first_cycles, same=alike, suspects=[
        Suspect('one-at-a-time', spread(lambda s, i, n, m: i * n + s)),
        Suspect('one-at-a-time', spread(lambda s, i, n, m: s * m + i)),
        Suspect('no-fill', spread(lambda s, i, n, m: i)),
        Suspect('no-drain', lambda sizes: first_cycles(sizes)[:sizes[1]]),
        Suspect('one-cycle-short', lambda sizes: first_cycles(sizes)[:-1]),
        Suspect('pair-swapped', lambda sizes: [sorted((i, s) for s, i in cycle) for cycle in first_cycles(sizes)]),
        Suspect('from-one', off(1, 1)), Suspect('from-one', off(0, 1)), Suspect('from-one', off(1, 0)),
        Suspect('flat', lambda sizes: Like(lambda got: isinstance(got, list) and bool(got) and all(
            isinstance(pair, tuple) and all(isinstance(part, int) for part in pair) for pair in got))),
        Suspect('empty-cycle', lambda sizes: Like(lambda got: isinstance(got, list) and [] in got
                                                  and [cycle for cycle in got if cycle] == first_cycles(sizes))),
        Suspect('out-of-range', lambda sizes: Like(lambda got: beyond(sizes, got))),
    ], tell=lambda sizes, got, wanted: f'clock_cycles({sizes[0]}, {sizes[1]})\n'
        f'yours     {shown(got)}\nexpected  {shown(wanted)}',
        picture=tables, lines=work.definition('clock_cycles'))


def unlike_gpipe(sizes: Sizes, rows: Any) -> str:
    """What is wrong with the rows, whatever time they take; '' if nothing is."""
    if found := broken(sizes, rows):
        return found
    for stage, row in enumerate(rows):
        kinds, numbers = ''.join(cell[0] for cell in row), [number(cell) for cell in row]
        if 'BF' in kinds:
            return (f'Stage {stage} runs {row[kinds.index("BF")]} before {row[kinds.index("BF") + 1]}, '
                    'and all forwards come first.')
        if numbers[:sizes[1]] != sorted(numbers[:sizes[1]]):
            return f'The forwards of stage {stage} are not in the order 0, 1, 2, ...'
    return ''


@check('every stage runs all forwards, then all backwards, each once, and the step comes to an end', points=3)
def legal(work: Work, random: Random) -> None:
    def like(misconception: str, fits: Any, *, readable: bool = True) -> Suspect:
        return Suspect(misconception, lambda sizes: Like(lambda rows: (not readable or are_rows(rows) and bool(rows))
                                                         and bool(fits(rows, *sizes))))

    def mixed(rows: Rows, n: int, m: int) -> bool:
        return not broken((n, m), rows) and any('BF' in ''.join(cell[0] for cell in row) for row in rows)

    def lacking(rows: Rows, m: int) -> set[tuple[str, ...]]:
        return {tuple(missing(row, m)) for row in rows}

    def without_idle(rows: Any, n: int, m: int) -> bool:
        busy = [[cell for cell in row if any(letter.isdigit() for letter in str(cell))] for row in rows]
        return busy != rows and not unlike_gpipe((n, m), busy)

    judge_rows('gpipe', lambda *sizes: work.gpipe(*sizes), sizes_to_try(random), unlike_gpipe, suspects=[
        like('no-backwards', lambda rows, n, m:
             len(rows) == n and all(row == [f'F{i}' for i in range(m)] for row in rows)),
        like('one-short', lambda rows, n, m: len(rows) == n and lacking(rows, m) in [{('B0',)}, {(f'B{m - 1}',)}]),
        like('one-short', lambda rows, n, m:
             len(rows) == n and lacking(rows, m) in [
                 {(f'F{m - 1}',)}, {(f'F{m - 1}', f'B{m - 1}')}]),
        like('one-row', lambda rows, n, m:
             isinstance(rows, list) and rows and all(CELL.fullmatch(cell) for cell in rows),
             readable=False),
        like('one-row', lambda rows, n, m: len(rows) == 1 and not unlike_gpipe((1, m), rows)),
        like('by-cycle', lambda rows, n, m: len(rows) in (m + n - 1, 2 * (m + n - 1)) and rows[0] == ['F0']),
        like('from-one', lambda rows, n, m:
             all({number(cell) for cell in row} == set(range(1, m + 1)) for row in rows)),
        like('stage-for-micro-batch', lambda rows, n, m:
             len(rows) == n and all(number(cell) == s for s, row in enumerate(rows) for cell in row)),
        like('by-micro-batch', lambda rows, n, m:
             len(rows) == m and all(number(cell) == i for i, row in enumerate(rows) for cell in row)),
        Suspect('no-pipeline', lambda sizes: [[f'{kind}{i}' for i in range(sizes[1]) for kind in 'FB']] * sizes[0]),
        like('mixed', mixed),
        Suspect('mixed', lambda sizes: [list(map(str, row)) for row in one_f_one_b(*sizes).rows]),
        like('forwards-reversed', lambda rows, n, m:
             not broken((n, m), rows) and all(row[0] == f'F{m - 1}' for row in rows)),
        like('idle-entries', without_idle, readable=False),
        like('spelling', lambda rows, n, m: not are_rows(rows) and isinstance(rows, list) and len(rows) == n and all(
            isinstance(row, list) and len(row) == 2 * m for row in rows), readable=False),
    ], expected=expected, lines=work.definition('gpipe'))


def expected(sizes: Sizes) -> list[str]:
    """One right answer."""
    cells = [f'F{i}' for i in range(sizes[1])] + [f'B{i}' for i in reversed(range(sizes[1]))]
    heads = ['such as ' if sizes[1] > 1 else ''] + [' ' * 8 if sizes[1] > 1 else ''] * sizes[0]
    return [f'{head}stage {stage} | {" ".join(cells)}' for stage, head in zip(range(sizes[0]), heads)]


def slow(sizes: Sizes, rows: Any) -> str:
    if found := broken(sizes, rows):
        return found
    takes, least = makespan(rows, sizes[1]), least_makespan(sizes)
    return f'The step takes {takes:g} units of time, and {least:g} are enough.' if takes > least else ''


@check('a step takes stages + micro-batches - 1 times a forward and a backward', points=2, after=['legal'])
def least_time(work: Work, random: Random) -> dict[str, str]:
    def differ(rows: Rows) -> bool:
        return are_rows(rows) and len({tuple(cell for cell in row if cell[0] == 'B') for row in rows}) > 1

    judge_rows('gpipe', lambda *sizes: work.gpipe(*sizes), sizes_to_try(random), slow, suspects=[
        Suspect('orders-differ', lambda sizes: Like(differ))], expected=expected, lines=work.definition('gpipe'))
    speed_ups = [4 * 3 * m / makespan(plain_rows(work.gpipe(4, m)), m) for m in (1, 4, 16)]
    return {'4 stages': 'with 1, 4 and 16 micro-batches {:.2f}, {:.2f} and {:.2f} times as fast as one'
            .format(*speed_ups)}


@check('the bubble is the idle share of the step', points=2)
def bubble(work: Work, random: Random) -> None:
    def number_of(answer: Any) -> Any:
        if hasattr(answer, 'item') and getattr(answer, 'size', None) is not None:   # a tensor or an array of one number
            answer = answer.item()
        return float(answer) if isinstance(answer, Real) and not isinstance(answer, bool) else answer

    def formula(misconception: str, value: Any) -> Suspect:
        return Suspect(misconception, lambda sizes: float(value(*sizes)))

    formulas = [('to-work', lambda n, m: (n - 1) / m), ('busy-share', lambda n, m: m / (m + n - 1)),
                ('idle-time', lambda n, m: n - 1), ('idle-time', lambda n, m: n * (n - 1)),
                ('idle-time', lambda n, m: 3 * (n - 1)),
                ('idle-time', lambda n, m: 2 * (n - 1)), ('idle-time', lambda n, m: 2 * n * (n - 1)),
                ('bubble-swapped', lambda n, m: (m - 1) / (m + n - 1)), ('off-by-one', lambda n, m: (n - 1) / (m + n)),
                ('off-by-one', lambda n, m: n / (m + n)), ('off-by-one', lambda n, m: n / (m + n - 1)),
                ('off-by-one', lambda n, m: (n - 1) / (m + n - 2)),
                ('percent', lambda n, m: 100 * (n - 1) / (m + n - 1)),
                ('rounded', lambda n, m: (n - 1) // (m + n - 1))]
    formulas += [('rounded', lambda n, m, digits=digits: round((n - 1) / (m + n - 1), digits)) for digits in range(5)]
    judge(sizes_to_try(random), lambda sizes: number_of(work.bubble(*sizes)),
          lambda sizes: float(1 - Fraction(sizes[1], len(first_cycles(sizes)))),
          same=lambda one, other: close(one, other, tolerance=1e-6),
          suspects=[formula(*each) for each in formulas], lines=work.definition('bubble'),
          tell=lambda sizes, got, wanted: f'bubble({sizes[0]}, {sizes[1]})\n'
        f'yours     {shown(got)}\nexpected  {shown(wanted)}')
