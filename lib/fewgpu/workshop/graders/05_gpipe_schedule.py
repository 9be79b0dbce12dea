"""Grader of exercise 05. Laws: every forward as early as can be; a step that ends, in the least time; the bubble."""

from fractions import Fraction
from random import Random
from typing import Any

from fewgpu.schedule import one_f_one_b
from fewgpu.workshop.graders.cycles import beyond, cut_or_padded, cycles_of, first_cycles, grid_of, tables
from fewgpu.workshop.graders.schedules import MISREAD, judge_rows, like, misread, sizes_to_try, slow
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Like, Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import number
from fewgpu.workshop.practice.rows import Rows, Sizes, broken, makespan, micro_batch, missing, plain_rows

FORBIDDEN = ('fewgpu.schedule', 'fewgpu.simulate', 'torchgpipe.pipeline.clock_cycles',
             'torch.distributed.pipelining.schedules')

MISCONCEPTIONS = MISREAD | {
    'one-at-a-time': 'only one stage works in a cycle: that is model parallelism, and a pipeline is there to have '
                     'all stages work at the same time',
    'no-fill': 'all stages begin in the first cycle, but a stage has nothing to work on before the previous '
               'stage has run the micro-batch',
    'no-drain': 'the cycles end when stage 0 has run its last micro-batch, and the next stages still have work '
                'to do',
    'one-cycle-short': 'the last cycle is missing, and with it the last forward of the last stage',
    'empty-cycle': 'there are cycles in which nothing runs: stages + micro_batches - 1 of them are enough',
    'out-of-range': 'some cycles name micro-batches or stages that do not exist: at the start and at the end not '
                    'all stages have work',
    'wrong-length': 'the cycles begin as they should, but there are too few or too many of them: it takes stages + '
                    'micro_batches - 1',
    'stages-reversed': 'the stages are numbered from the last: stage 0 has the first layers, and works first',
    'transfer-cycle': 'there is an idle cycle between two stages; a stage can go on in the very next cycle after the '
                      'previous stage has run the micro-batch',
    'pair-swapped': 'stages and micro-batches are exchanged: a pair is (stage, micro-batch)',
    'flat': 'it is one list of pairs, and has to be a list of cycles, each a list of pairs: or nobody knows what '
            'runs together',
    'no-backwards': 'there are no backwards: without them nothing is learned',
    'one-short': 'a loop over the micro-batches stops one too early, as range(m - 1, 0, -1) does, which never '
                 'comes to 0',
    'sizes-swapped': 'stages and micro-batches are exchanged: there has to be a row for each stage, and in it the '
                     'operations of all micro-batches',
    'by-cycle': 'it is a list by clock cycles, and has to be a list with one row for each stage',
    'by-micro-batch': 'there is one row for each micro-batch, and has to be one for each stage',
    'stage-for-micro-batch': 'the operations are numbered by their stage: F0 is the forward of micro-batch 0, on '
                             'every stage',
    'backwards-first': 'the backwards come before the forwards, and a backward needs what its own forward has left',
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
    'not-per-stage': 'the idle time of all stages is divided by the length of the step alone: all stages together have '
                     'as many times that length as there are stages',
    'forwards-alone': 'the idle time of forwards and backwards is divided by the length of the forwards alone',
    'one-micro-batch': 'that is the idle share with a single micro-batch; the more there are, the smaller is the '
                       'bubble',
    'all-in-turn': 'the idle cycles are divided by stages * micro_batches, as if one micro-batch after the other went '
                   'through all stages; a step has stages + micro_batches - 1 cycles',
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
        idea='A gradient comes from the next stage. What if that stage has started with another micro-batch '
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


@check('every forward runs in the first cycle in which it can', points=3)
def clock_cycles(work: Work, random: Random) -> None:
    def spread(at: Any) -> Any:   # a suspect that runs (s, i) in cycle at(s, i, n, m)
        return lambda sizes: grid_of({(s, i): at(s, i, *sizes) for s in range(sizes[0]) for i in range(sizes[1])})

    def off(first: int, second: int) -> Any:
        return lambda sizes: [sorted((s + first, i + second) for s, i in cycle) for cycle in first_cycles(sizes)]

    judge(sizes_to_try(random), lambda sizes: cycles_of(work.clock_cycles(*sizes)), first_cycles, suspects=[
        Suspect('one-at-a-time', spread(lambda s, i, n, m: i * n + s)),
        Suspect('one-at-a-time', spread(lambda s, i, n, m: s * m + i)),
        Suspect('no-fill', spread(lambda s, i, n, m: i)),
        Suspect('no-drain', lambda sizes: first_cycles(sizes)[:sizes[1]]),
        Suspect('one-cycle-short', lambda sizes: first_cycles(sizes)[:-1]),
        Suspect('pair-swapped', lambda sizes: [sorted((i, s) for s, i in cycle) for cycle in first_cycles(sizes)]),
        Suspect('stages-reversed', spread(lambda s, i, n, m: n - 1 - s + i)),
        Suspect('forwards-reversed', spread(lambda s, i, n, m: m - 1 - i + s)),
        Suspect('transfer-cycle', spread(lambda s, i, n, m: i + 2 * s)),
        Suspect('transfer-cycle', lambda sizes: [*filter(None, spread(lambda s, i, n, m: i + 2 * s)(sizes))]),
        Suspect('from-one', off(1, 1)), Suspect('from-one', off(0, 1)), Suspect('from-one', off(1, 0)),
        Suspect('flat', lambda sizes: Like(lambda got: isinstance(got, list) and bool(got) and all(
            isinstance(pair, (tuple, list)) and pair and all(isinstance(part, int) for part in pair) for pair in got))),
        Suspect('empty-cycle', lambda sizes: Like(lambda got: isinstance(got, list) and [] in got
                                                  and [cycle for cycle in got if cycle] == first_cycles(sizes))),
        Suspect('out-of-range', lambda sizes: Like(lambda got: beyond(sizes, got))),
        Suspect('wrong-length', lambda sizes: Like(lambda got: bool(got) and cut_or_padded(sizes, got))),
    ], tell=lambda sizes, got, wanted: f'clock_cycles({sizes[0]}, {sizes[1]})\n'
        f'yours     {shown(got)}\nexpected  {shown(wanted)}',
        picture=tables, lines=work.definition('clock_cycles'))


def unlike_gpipe(sizes: Sizes, rows: Any) -> str:
    """What is wrong with the rows, whatever time they take; '' if nothing is."""
    if found := broken(sizes, rows):
        return found
    for stage, row in enumerate(rows):
        kinds, numbers = ''.join(cell[0] for cell in row), [micro_batch(cell) for cell in row]
        if 'BF' in kinds:
            return (f'Stage {stage} runs {row[kinds.index("BF")]} before {row[kinds.index("BF") + 1]}, '
                    'and all forwards come first.')
        if numbers[:sizes[1]] != sorted(numbers[:sizes[1]]):
            return f'The forwards of stage {stage} are not in the order 0, 1, 2, ...'
    return ''


@check('every stage runs all forwards, then all backwards, each once, and the step comes to an end', points=3)
def legal(work: Work, random: Random) -> None:
    def mixed(rows: Rows, n: int, m: int) -> bool:
        return not broken((n, m), rows) and any('BF' in ''.join(cell[0] for cell in row) for row in rows)

    def lacking(rows: Rows, m: int) -> set[tuple[str, ...]]:
        return {tuple(missing(row, m)) for row in rows}

    judge_rows('gpipe', work.gpipe, random, unlike_gpipe, suspects=[
        like('no-backwards', lambda rows, n, m:
             len(rows) == n and all(row == [f'F{i}' for i in range(m)] for row in rows)),
        like('one-short', lambda rows, n, m: len(rows) == n and lacking(rows, m) in [
            {('B0',)}, {(f'B{m - 1}',)}, {(f'F{m - 1}',)}, {(f'F{m - 1}', f'B{m - 1}')}]),
        *misread(unlike_gpipe),
        like('sizes-swapped', lambda rows, n, m: not unlike_gpipe((m, n), rows)),
        like('backwards-first', lambda rows, n, m: len(rows) == n and all(
            ''.join(cell[0] for cell in row) == 'B' * m + 'F' * m for row in rows)),
        like('by-cycle', lambda rows, n, m: len(rows) in (m + n - 1, 2 * (m + n - 1)) and rows[0] == ['F0']),
        like('stage-for-micro-batch', lambda rows, n, m:
             len(rows) == n and all(micro_batch(cell) == s for s, row in enumerate(rows) for cell in row)),
        like('stage-for-micro-batch', lambda rows, n, m: not unlike_gpipe((n, m), [
             [f'{cell[0]}{micro_batch(cell) - s}' for cell in row] for s, row in enumerate(rows)])),
        like('by-micro-batch', lambda rows, n, m:
             len(rows) == m and all(micro_batch(cell) == i for i, row in enumerate(rows) for cell in row)),
        like('by-micro-batch', lambda rows, n, m: not unlike_gpipe((m, m), rows)),
        Suspect('no-pipeline', lambda sizes: [[f'{kind}{i}' for i in range(sizes[1]) for kind in 'FB']] * sizes[0]),
        like('mixed', mixed),
        Suspect('mixed', lambda sizes: [list(map(str, row)) for row in one_f_one_b(*sizes).rows]),
        like('forwards-reversed', lambda rows, n, m:
             not broken((n, m), rows) and all(row[0] == f'F{m - 1}' for row in rows)),
    ], expected=expected, lines=work.definition('gpipe'))


def expected(sizes: Sizes) -> Rows:
    return [[f'F{i}' for i in range(sizes[1])] + [f'B{i}' for i in reversed(range(sizes[1]))]] * sizes[0]


@check('a step takes stages + micro-batches - 1 times a forward and a backward', points=2, after=['legal'])
def least_time(work: Work, random: Random) -> dict[str, str]:
    judge_rows('gpipe', work.gpipe, random, slow, suspects=[
        like('orders-differ', lambda rows, n, m:
             len({tuple(cell for cell in row if cell[0] == 'B') for row in rows}) > 1),
    ], expected=expected, lines=work.definition('gpipe'))
    speed_ups = [4 * 3 * m / makespan(plain_rows(work.gpipe(4, m))) for m in (1, 4, 16)]
    return {'4 stages': 'with 1, 4 and 16 micro-batches {:.2f}, {:.2f} and {:.2f} times as fast as one device'
            .format(*speed_ups)}


@check('the bubble is the idle share of the step', points=2)
def bubble(work: Work, random: Random) -> None:
    def formula(misconception: str, value: Any) -> Suspect:
        return Suspect(misconception, lambda sizes: float(value(*sizes)))

    formulas = [('to-work', lambda n, m: (n - 1) / m), ('busy-share', lambda n, m: m / (m + n - 1)),
                ('idle-time', lambda n, m: n - 1), ('idle-time', lambda n, m: n * (n - 1)),
                ('idle-time', lambda n, m: 3 * (n - 1)),
                ('idle-time', lambda n, m: 2 * (n - 1)), ('idle-time', lambda n, m: 2 * n * (n - 1)),
                ('bubble-swapped', lambda n, m: (m - 1) / (m + n - 1)), ('off-by-one', lambda n, m: (n - 1) / (m + n)),
                ('off-by-one', lambda n, m: n / (m + n)), ('off-by-one', lambda n, m: n / (m + n - 1)),
                ('off-by-one', lambda n, m: (n - 1) / (m + n - 2)),
                ('not-per-stage', lambda n, m: n * (n - 1) / (m + n - 1)),
                ('forwards-alone', lambda n, m: 2 * (n - 1) / (m + n - 1)),
                ('forwards-alone', lambda n, m: 3 * (n - 1) / (m + n - 1)),
                ('one-micro-batch', lambda n, m: (n - 1) / n), ('all-in-turn', lambda n, m: (n - 1) / (n * m)),
                ('percent', lambda n, m: 100 * (n - 1) / (m + n - 1)),
                ('rounded', lambda n, m: (n - 1) // (m + n - 1))]
    formulas += [('rounded', lambda n, m, digits=digits: round((n - 1) / (m + n - 1), digits)) for digits in range(5)]
    judge(sizes_to_try(random), lambda sizes: number(work.bubble(*sizes)),
          lambda sizes: float(1 - Fraction(sizes[1], len(first_cycles(sizes)))),
          same=lambda one, other: close(one, other, tolerance=1e-6),
          suspects=[formula(*each) for each in formulas], lines=work.definition('bubble'),
          tell=lambda sizes, got, wanted: f'bubble({sizes[0]}, {sizes[1]})\n'
        f'yours     {shown(got)}\nexpected  {shown(wanted)}')
