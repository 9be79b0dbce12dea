"""Exercise 10: one forward, one backward: GPipe's speed with less memory (about 30 minutes).

GPipe runs all forwards before the first backward. So every stage keeps what the backwards need of all its
micro-batches, and more micro-batches, which make the bubble smaller, need more memory. 1F1B (one forward, one
backward) starts each backward as soon as it can and frees what it kept: the step is as short, and a stage keeps no
more micro-batches than there are stages.

    ./workshop.py check 10       # is it right?
    ./workshop.py run exercises/10_one_f_one_b.py
"""

from fewgpu.workshop.practice.rows import show


def stashes(row: list[str]) -> int:
    """How many micro-batches a stage keeps at its peak, while it runs this row.

    'F0' is the forward of micro-batch 0, 'B0' its backward. A forward keeps something for its backward, the stash,
    and the backward frees it. The row is what one stage runs, in order, or the beginning of it; it has at least one
    operation.

        stashes(['F0', 'F1', 'B1', 'F2', 'B0', 'B2'])  ->  2
        stashes(['F0', 'F1', 'F2'])                    ->  3
    """
    # STEP 1: walk along the row and count what is kept; remember the most
    kept = most = 0
    for operation in row:
        kept += 1 if operation.startswith('F') else -1
        most = max(most, kept)
    return most
    # END


def one_f_one_b(stages: int, micro_batches: int) -> list[list[str]]:
    """What every stage runs in one training step, in order: a list with one list for each stage.

    A stage runs the forward 'Fi' and the backward 'Bi' of every micro-batch i = 0, 1, ..., micro_batches - 1 once.
    A row is an order, not a timetable: a stage waits until its input is there. Fi needs Fi of the previous stage.
    Bi needs the stage's own Fi and, except on the last stage, Bi of the next stage. All stages and micro-batches cost
    the same.

    Laws:

    - Stage s, counted from 0, keeps at most min(micro_batches, stages - s) micro-batches at a time.
    - The step takes no longer than GPipe's: (stages + micro_batches - 1) times a forward and a backward (which takes
      twice as long as a forward).

    So a stage warms up with a few forwards, then runs one forward and one backward in turn, and drains: the
    backwards that are left. How many forwards warm it up depends on how many stages come after it. There may be
    fewer micro-batches than stages; there is at least one of each.

        one_f_one_b(3, 4)  ->  [['F0', 'F1', 'F2', 'B0', 'F3', 'B1', 'B2', 'B3'],
                                ['F0', 'F1', 'B0', 'F2', 'B1', 'F3', 'B2', 'B3'],
                                ['F0', 'B0', 'F1', 'B1', 'F2', 'B2', 'F3', 'B3']]
    """
    # STEP 2: for every stage: how long is its warm-up, what comes in turn, and what is left at the end?
    rows = []
    for stage in range(stages):
        warm_up = min(stages - 1 - stage, micro_batches)
        row = [f'F{i}' for i in range(warm_up)]
        for forward in range(warm_up, micro_batches):
            row += [f'F{forward}', f'B{forward - warm_up}']
        row += [f'B{i}' for i in range(micro_batches - warm_up, micro_batches)]
        rows.append(row)
    return rows
    # END


if __name__ == '__main__':
    gpipe = ['F0', 'F1', 'F2', 'F3', 'B3', 'B2', 'B1', 'B0']
    print('one_f_one_b(3, 4), in time: a backward takes twice as long as a forward')
    rows = one_f_one_b(3, 4)
    show(rows, micro_batches=4)
    print('micro-batches that a stage keeps at its peak')
    print('   GPipe', [stashes(gpipe)] * 3)
    print('   1F1B ', [stashes(row) for row in rows or []])
