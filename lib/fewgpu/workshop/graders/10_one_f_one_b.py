"""Grader of exercise 10. Laws: the peak is counted; a step that ends, with few stashes, and in GPipe's time."""

from random import Random
from typing import Any

from fewgpu.workshop.graders.schedules import MISREAD, judge_rows, least_makespan, like, misread, slow
from fewgpu.workshop.graders.wrong_rows import newest_first, rows_with, warm_ups
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import number
from fewgpu.workshop.practice.rows import Rows, Sizes, broken, makespan, micro_batch, missing, plain_rows

FORBIDDEN = 'fewgpu.schedule', 'fewgpu.simulate', 'torch.distributed.pipelining.schedules'

MISCONCEPTIONS = MISREAD | {
    'never-frees': 'the backwards free nothing: only forwards are counted, so the memory seems to grow to the end '
                   'of the step',
    'at-the-end': 'that is what is left at the end of the row; the peak is the most that there ever is, and that '
                  'is what has to fit into memory',
    'looks-before': 'the peak is looked up before the operation has changed it, so the last forward is not seen',
    'one-more': 'that is one more than is ever kept: a stash is there from its forward to its backward, and no '
                'longer',
    'longest-run': 'that is the longest run of forwards; what was kept before the run is still there',
    'leading-forwards': 'only the forwards before the first backward are counted; later there may be more at a time',
    'noted-at-backward': 'the peak is noted only where a backward comes: what the last forwards keep is not seen',
    'largest-number': 'the numbers of the micro-batches only say how many there have been; those whose backward is '
                      'done are not kept any more',
    'half-the-row': 'half of the operations is the number of micro-batches of a whole row, not how many of them are '
                    'kept at a time',
    'one-digit': 'only one digit of the number is read, so F1 and F10 are taken for the same micro-batch',
    'gpipe': 'all forwards come before the first backward, as in GPipe: every stage keeps all micro-batches',
    'no-warm-up': 'no stage warms up: each micro-batch goes all the way and back before the next one starts, and '
                  'only one stage works at a time',
    'warm-up-short': 'the warm-up is one forward too short: a stage waits for a gradient while it could run one '
                     'more forward',
    'warm-up-long': 'the warm-up is one forward too long: the stage keeps a micro-batch more than it needs to be '
                    'busy',
    'warm-up-double': 'the warm-up is twice as long as it need be: one forward for each stage after this one is '
                      'enough, and all others only take memory',
    'warm-up-equal': 'all stages warm up alike, but the later a stage is, the sooner the gradients are back: it '
                     'needs fewer forwards, and the last needs none',
    'warm-up-reversed': 'the warm-up grows from stage to stage; it has to shrink: the first stage waits longest '
                        'for a gradient',
    'backward-first': 'after the warm-up the backward comes first, and it waits for a micro-batch that this stage '
                      'still holds back: the forward of the pair has to come first',
    'newest-first': 'the backwards do not come in the order of the forwards: the gradient of the oldest micro-batch is '
                    'back first, and a stage that wants another one waits',
    'starts-over': 'what runs in turn begins again with micro-batch 0, whose forward was in the warm-up: go on with '
                   'the next one',
    'flush': 'the micro-batches go in groups, and all backwards of a group come before the next group begins: the '
             'pipeline runs empty each time, or even waits for ever',
    'no-drain': 'the backwards of the warm-up are missing at the end: their gradients are lost',
    'beyond-last': 'the warm-up is longer than there are micro-batches: with few of them, some operations are of '
                   'micro-batches that do not exist',
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
        outline='warm_up of a stage = as many as there are stages after it, but no more than micro_batches\n'
                'F0 ... of the warm-up\n'
                'as long as there are forwards left: the next F, the next B\n'
                'the Bs that are left'),
    'memory': Hints(
        idea='The last stage can run B0 right after F0: it keeps one. How many does the stage before it start '
             'until B0 comes back?',
        place='`one_f_one_b`: the warm-up of stage s. It ends so that, with the forward of the first pair, stages '
              '- s are kept.',
        outline='the warm-up of stage s: one forward for each stage after it, stages - 1 - s\n'
                'then a forward and a backward in turn: what is kept goes up by one and down by one'),
    'least_time': Hints(
        idea='While the first micro-batch travels to the last stage and back, what could stage 0 do instead of '
             'waiting? How many forwards fit? And which gradient comes back first?',
        place='`one_f_one_b`: the length of the warm-up, and the order of the backwards (the oldest first).',
        outline='the warm-up of stage s: stages - 1 - s forwards\n'
                'then, for k = 0, 1, ...: F of warm-up + k, B of k'),
}


def most_kept(row: list[str]) -> int:
    """By definition: the most micro-batches whose forward is among the first operations and whose backward is not."""
    def begun(kind: str, end: int) -> set[int]:
        return {micro_batch(cell) for cell in row[:end] if cell[0] == kind}
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

    def longest_run(row: list[str]) -> int:
        return max(map(len, ''.join(cell[0] for cell in row).split('B')))

    def kept_after(row: list[str]) -> int:
        return sum(1 if cell[0] == 'F' else -1 for cell in row)

    def kept_by_digit(row: list[str], place: int) -> int:
        kept, most = set(), 0
        for cell in row:
            (kept.add if cell[0] == 'F' else kept.discard)(cell[place])
            most = max(most, len(kept))
        return most

    rows = [['F0'], ['F0', 'B0'], ['F0', 'F1'], ['F0', 'B0', 'F1'], ['F0', 'F1', 'B1', 'F2', 'B0', 'B2']]
    rows += [row.split() for row in ('F0 F1 F2 F3 B0 B1 B2 B3', 'F0 F1 B0 F2 F3 B1 B2 B3', 'F9 F10 F11 B10 B9 F12 B11')]
    rows += sorted((random_row() for _ in range(15)), key=len)
    judge(rows, lambda row: number(work.stashes(list(row))), most_kept, suspects=[
        Suspect('never-frees', lambda row: sum(cell[0] == 'F' for cell in row)),
        Suspect('at-the-end', kept_after),
        Suspect('looks-before', lambda row: max(kept_after(row[:end]) for end in range(len(row)))),
        Suspect('one-more', lambda row: most_kept(row) + 1),
        Suspect('longest-run', longest_run),
        Suspect('leading-forwards', lambda row: ' '.join(row).partition('B')[0].count('F')),
        Suspect('noted-at-backward', lambda row: max(
            [0, *(kept_after(row[:end]) for end in range(len(row)) if row[end][0] == 'B')])),
        Suspect('noted-at-backward', lambda row: max(
            [0, *(kept_after(row[:end + 1]) for end in range(len(row)) if row[end][0] == 'B')])),
        Suspect('largest-number', lambda row: max(map(micro_batch, row)) + 1),
        Suspect('largest-number', lambda row: max(map(micro_batch, row))),
        Suspect('half-the-row', lambda row: len(row) // 2),
        Suspect('half-the-row', lambda row: len(row) / 2),
        *(Suspect('one-digit', lambda row, place=place: kept_by_digit(row, place)) for place in (1, -1)),
    ], tell=lambda row, got, wanted: f'stashes({row})\n'
        f'yours     {shown(got)}\nexpected  {shown(wanted)}', lines=work.definition('stashes'))


def expected(sizes: Sizes) -> Rows:
    return rows_with(sizes, lambda s, n: n - 1 - s)


@check('every stage runs each forward and each backward once, and the step comes to an end', points=3)
def legal(work: Work, random: Random) -> None:
    def no_drain(rows: Rows, n: int, m: int) -> bool:
        return len(rows) == n and [missing(row, m) for row in rows] in [
            [[f'B{i}' for i in range(m - min(warm - s, m), m)] for s in range(n)] for warm in (n - 1, n)]

    judge_rows('one_f_one_b', work.one_f_one_b, random, broken, suspects=[
        *misread(broken),
        like('no-drain', no_drain),
        like('starts-over', lambda rows, n, m: len(rows) == n and any(
            row[0] == 'F0' and ('F0', 'B0') in zip(row[1:], row[2:]) for row in rows)),
        newest_first(broken),
        like('beyond-last', lambda rows, n, m: n > m and len(rows) == n and any(
            not 0 <= int(cell[1:]) < m for row in rows for cell in row), readable=False),
        Suspect('backward-first', lambda sizes: rows_with(sizes, lambda s, n: n - 1 - s, backward_first=True)),
        *warm_ups(),
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
    judge_rows('one_f_one_b', work.one_f_one_b, random, heavy, suspects=[
        like('gpipe', lambda rows, n, m: not any('BF' in ''.join(cell[0] for cell in row) for row in rows)),
        *warm_ups(),
    ], expected=expected, lines=work.definition('one_f_one_b'))
    peaks = [most_kept(row) for row in plain_rows(work.one_f_one_b(4, 16))]
    return {'kept at the peak': f'4 stages, 16 micro-batches: {", ".join(map(str, peaks))}; by GPipe: 16, 16, 16, 16'}


@check("the step takes no longer than GPipe's", points=2, after=['legal'])
def least_time(work: Work, random: Random) -> dict[str, str]:
    judge_rows('one_f_one_b', work.one_f_one_b, random, slow, suspects=[*warm_ups(), newest_first(slow)],
               expected=expected, lines=work.definition('one_f_one_b'))
    takes = makespan(plain_rows(work.one_f_one_b(4, 16)))
    return {'4 stages, 16 micro-batches': f'{takes:g} units of time; GPipe {least_makespan((4, 16)):g}; '
                                          f'one micro-batch after the other {4 * 16 * 3}'}
