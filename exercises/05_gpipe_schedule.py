"""Exercise 05: the schedule of GPipe: what every stage does, and how long it is idle (about 25 minutes).

A model is cut into stages, one a GPU. If they handle the mini-batch in one piece, only one of them works at a time.
GPipe cuts it into micro-batches: while stage 1 works on micro-batch 0, stage 0 goes on with micro-batch 1. Such a
plan is a schedule. Here it is plain data, so that it can be checked, drawn and timed before any tensor moves.

    ./workshop.py check 05       # is it right?
    ./workshop.py run exercises/05_gpipe_schedule.py
"""

from fewgpu.workshop.practice.rows import show


def clock_cycles(stages: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Which forwards run at the same time: for every clock cycle the list of its (stage, micro-batch).

    All forwards take one cycle. A stage runs one forward in a cycle, and takes the micro-batches in the order
    0, 1, 2, ... A stage can run a micro-batch from the cycle after the one in which the previous stage ran that
    micro-batch; stage 0 need not wait for anybody. Every forward runs in the first cycle in which it can. Stages and
    micro-batches are counted from 0, and there is at least one of each; either may be more than the other.

    Inside a cycle the order does not matter. The list ends with the last forward: no cycle is empty.

        clock_cycles(2, 3)  ->  [[(0, 0)],
                                 [(0, 1), (1, 0)],
                                 [(0, 2), (1, 1)],
                                 [(1, 2)]]
    """
    # TODO STEP 1: in which cycle does stage s run micro-batch i? And which cycle is the last?
    # END


def gpipe(stages: int, micro_batches: int) -> list[list[str]]:
    """What every stage runs in one training step, in order: a list with one list for each stage.

    'F0' is the forward of micro-batch 0, 'B0' its backward. A stage runs the forward and the backward of every
    micro-batch once: first all forwards, in the order 0, 1, 2, ..., then all backwards. A row is an order, not a
    timetable: idle time is not written down, a stage simply waits until its input is there.

    Fi of a stage needs Fi of the previous stage. Bi of a stage needs its own Fi and, except on the last stage, Bi of
    the *next* stage, from which the gradient comes. In which order the backwards come is up to you, as long as the
    whole step takes no longer than it must: (stages + micro_batches - 1) times a forward and a backward.

        gpipe(2, 3)  ->  [['F0', 'F1', 'F2', 'B2', 'B1', 'B0'],
                          ['F0', 'F1', 'F2', 'B2', 'B1', 'B0']]
    """
    # TODO STEP 2: the row of one stage; then, how do the rows of the others differ?
    # END


def bubble(stages: int, micro_batches: int) -> float:
    """The share of the step in which a stage is idle, between 0 and 1: the bubble.

    It is the idle time of all stages together, divided by (number of stages * length of the step). It is the same
    for the forwards alone, so you may count the cycles of `clock_cycles`, or find the formula.

        bubble(2, 3)  ->  0.25          each of the two stages works in 3 of 4 cycles
        bubble(1, 3)  ->  0.0           a single stage never waits
    """
    # TODO STEP 3: how many cycles are there, and in how many of them does a stage work?
    # END


if __name__ == '__main__':
    print('clock_cycles(2, 3)')
    for number, cycle in enumerate(clock_cycles(2, 3) or []):
        print('   cycle', number, cycle)
    print('gpipe(2, 3), in time: a backward takes twice as long as a forward')
    show(gpipe(2, 3), micro_batches=3)
    print('bubble(2, 3)', bubble(2, 3))
