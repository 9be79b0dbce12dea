"""Exercise 08: where to cut a model into stages (about 40 minutes).

A pipeline runs at the pace of its slowest stage: all others wait for it. Layers differ: the first five of the forty
layers of VGG-16 take a third of the time, the last five next to none. So the same number of layers for every stage
is a bad cut, and the best one can be computed from what each layer costs.

    ./workshop.py check 08       # is it right?
    ./workshop.py run exercises/08_balance.py
"""

from itertools import accumulate

from fewgpu.workshop.practice.chain import VGG16


def slowest(costs: list[float], balance: list[int]) -> float:
    """The time of the slowest stage.

    `costs` are the milliseconds of every layer, in order, and `balance` says how many layers each stage has: the
    first balance[0] layers are stage 0, the next balance[1] layers are stage 1, and so on. A stage takes the sum of
    its layers.

        slowest([4, 1, 1, 2, 6], [1, 3, 1])  ->  6      the stages take 4, 1 + 1 + 2 = 4, and 6
    """
    # STEP 1: each stage begins at the layer where the one before it has ended
    times, start = [], 0
    for layers in balance:
        times.append(sum(costs[start:start + layers]))
        start += layers
    return max(times)
    # END


def balance(costs: list[float], stages: int) -> list[int]:
    """How many layers each stage gets, so that the slowest stage is as fast as it can be.

    The layers stay in their order: a stage is a run of neighbours, for the output of a layer is the input of the
    next. Every stage has at least one layer, and every layer is in one stage. There are at least as many layers as
    stages, and at least one stage; no cost is negative, some may be 0. Where several cuts are equally good, any of
    them will do.

    There are far too many cuts to try them all: 200 layers can be cut into 8 stages in 2,203,959,847,089 ways. Your
    function has to come to an end for these, too, in a second or two.

        balance([4, 1, 1, 2, 6], 2)  ->  [4, 1]         8 and 6; [3, 2] would take 6 and 8, which is as good
        balance([4, 1, 1, 2, 6], 3)  ->  [1, 3, 1]      4, 4 and 6
    """
    # STEP 2: the best cut of the first `end` layers into n stages follows from the best cuts into n - 1 stages
    sums = [0, *accumulate(costs)]   # sums[end]: what the first `end` layers take together
    best = {end: (sums[end], [end]) for end in range(1, len(costs) + 1)}   # by end: slowest stage, layers of each stage
    for n in range(2, stages + 1):
        best = {end: min((max(best[start][0], sums[end] - sums[start]), [*best[start][1], end - start])
                         for start in range(n - 1, end))
                for end in range(n, len(costs) + 1)}
    return best[len(costs)][1]
    # END


if __name__ == '__main__':
    print('slowest([4, 1, 1, 2, 6], [1, 3, 1])', slowest([4, 1, 1, 2, 6], [1, 3, 1]))
    print('balance([4, 1, 1, 2, 6], 3)        ', balance([4, 1, 1, 2, 6], 3))
    equal, yours = [10, 10, 10, 10], balance(VGG16, 4)
    print('VGG-16 in four stages, milliseconds of the slowest stage')
    print('   the same number of layers for each ', equal, slowest(VGG16, equal))
    print('   your cut                           ', yours, slowest(VGG16, yours) if yours else 'nothing yet')
