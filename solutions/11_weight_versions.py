"""Exercise 11: which weights for which micro-batch (about 35 minutes).

A pipeline that never runs empty has no bubble. But then weights are updated while other micro-batches are on their
way: their forward has met older weights than their backward will meet. PipeDream keeps the old weights for those
(weight stashing), and PipeDream-2BW manages with two versions on every stage. What remains is a delay: gradients are
a little older than the weights that they change. How much older, on which stage, and at the price of how many copies?

    ./workshop.py check 11       # is it right?
    ./workshop.py run exercises/11_weight_versions.py

Papers: PipeDream, arXiv 1806.03377, section 3; PipeDream-2BW, arXiv 2006.09503, section 3.
"""

from collections.abc import Callable

import torch


def version(rule: str, stages: int, stage: int, micro_batch: int, per_update: int = 1) -> int:
    """Which version of its weights a stage uses for a micro-batch, in its forward and again in its backward.

    The version is the number of updates that the weights have had: 0 are the weights from the start. Stages and
    micro-batches are counted from 0, and micro-batches come without end. `rule` is one of three:

    'pipedream': every stage updates its weights after every backward, and a forward takes the newest weights that its
    stage has. U is an update; with 3 stages each runs, in this order

        stage 0 | F0 F1 F2 B0 U F3 B1 U F4 B2 U F5 B3 U ...
        stage 1 | F0 F1 B0 U F2 B1 U F3 B2 U F4 B3 U ...
        stage 2 | F0 B0 U F1 B1 U F2 B2 U F3 B3 U ...

    So stage 0 takes version 1 for micro-batch 3, for one U stands before F3. In general, stage s of n begins with
    n - 1 - s forwards; then it runs a forward, a backward and an update in turn.

    'vertical sync': the same order, but a micro-batch has one version on all stages: the one that stage 0 used for
    it. (The later stages keep that version until it comes.)

    '2bw': a stage updates its weights after every `per_update` backwards: the first group are the micro-batches 0,
    ..., per_update - 1, the next group are the per_update after them, and so on. No forward takes the newest weights
    just because they happen to be there: all micro-batches of a group take, on all stages, the version from before
    the update that the group before theirs makes. The first group takes version 0, and so does the second; the third
    takes the version that the first has made. `per_update` is at least `stages`; only this rule looks at it.

        version('pipedream', 3, 0, 3)      ->  1
        version('pipedream', 3, 2, 3)      ->  3
        version('vertical sync', 3, 2, 3)  ->  1
        version('2bw', 3, 0, 9, 4)         ->  1      micro-batch 9 is in the third group of four
    """
    # STEP 1: count, for each rule, the updates that have been made by then (before the first, 0)
    if rule == '2bw':
        group = micro_batch // per_update
        return max(0, group - 1)
    sets_the_version = 0 if rule == 'vertical sync' else stage
    in_flight = stages - 1 - sets_the_version   # micro-batches before this one whose backward is still to come
    return max(0, micro_batch - in_flight)
    # END


class Stash:
    """The weights of one stage, under weight stashing: a backward gets the weights that its forward got.

    What is called, in which order, is up to the schedule: any number of forwards may be on their way, backwards come
    in any order, and updates at any time. Every micro-batch has one forward and then one backward.

    Weights are large. So the stash holds the newest version, and of each older one a single copy, as long as there is
    a micro-batch on its way that has used it, and no longer. (Several micro-batches may share a version.)

        stash = Stash(torch.tensor([5.0]))
        stash.forward(0)                       ->  [5.]
        stash.update(torch.tensor([1.0]))
        stash.forward(1)                       ->  [6.]
        stash.backward(0)                      ->  [5.]      which nobody needs any more: it is let go
        stash.backward(1)                      ->  [6.]
    """

    def __init__(self, weights: torch.Tensor) -> None:
        """`weights`, a tensor, are version 0. Nobody else changes this tensor from now on: you need no copy of it."""
        # STEP 2: what does a stash have to remember, by which name?
        self.newest = weights
        self.used: dict[int, torch.Tensor] = {}   # by micro-batch on its way
        # END

    def forward(self, micro_batch: int) -> torch.Tensor:
        """The weights for the forward of this micro-batch: the newest."""
        # STEP 3: hand out the newest weights, and remember that this micro-batch uses them
        self.used[micro_batch] = self.newest
        return self.newest
        # END

    def backward(self, micro_batch: int) -> torch.Tensor:
        """The weights for its backward: those that `forward` returned for it. After that it needs none any more."""
        # STEP 4: hand out what its forward had, and forget it
        return self.used.pop(micro_batch)
        # END

    def update(self, change: torch.Tensor) -> None:
        """From now on the newest weights are those of before plus `change`. What forwards have got stays as it is."""
        # STEP 5: make the next version
        self.newest = self.newest + change   # a new tensor: += would write into the one that forwards have got
        # END


def train(weights: torch.Tensor, gradient: Callable[[torch.Tensor, int], torch.Tensor], micro_batches: int,
          per_update: int, lr: float) -> torch.Tensor:
    """Train as PipeDream-2BW does, and return the newest weights: W(t+1) = W(t) - lr * gradient at W(t-1).

    `gradient(w, i)` returns the gradient of the loss of micro-batch i at weights w; w is any tensor of the shape of
    `weights`, and it returns a new tensor, which you may change. Micro-batches 0, ..., micro_batches - 1 are used once
    each, in this order, in groups of `per_update` (which divides their number). Group t, from 0, takes all its
    gradients at the weights of one update before, W(t-1), and changes the newest, W(t), by the mean of its gradients.
    W(0) is `weights`; there is nothing before it, so group 0 takes its gradients at W(0).

    At any time there are two versions of the weights and one sum of gradients, and no more of either. `weights` stays
    as it was: it is the caller's.

        W(0) = [8.], and the gradient of every micro-batch at w is w; per_update = 2, lr = 0.5
        group 0: W(1) = 8 - 0.5 * 8 = 4        at W(0)
        group 1: W(2) = 4 - 0.5 * 8 = 0        at W(0) again
        group 2: W(3) = 0 - 0.5 * 4 = -2       at W(1)
        train(torch.tensor([8.0]), lambda w, i: w.clone(), 6, 2, 0.5)  ->  [-2.]
    """
    # STEP 6: two versions; one group after the other: sum up, divide, update
    previous = newest = weights
    for start in range(0, micro_batches, per_update):
        total = torch.zeros_like(weights)
        for i in range(start, start + per_update):
            total += gradient(previous, i)
        previous, newest = newest, newest - lr * total / per_update
    return newest
    # END


if __name__ == '__main__':
    for each in ('pipedream', 'vertical sync', '2bw'):
        print(f'{each}: the versions of 3 stages for micro-batches 0 to 11')
        for s in range(3):
            print(f'   stage {s} ', *(version(each, 3, s, i, 4) for i in range(12)))
    stash = Stash(torch.tensor([5.0]))
    print('forward of 0 ', stash.forward(0))
    stash.update(torch.tensor([1.0]))
    print('forward of 1 ', stash.forward(1))
    print('backward of 0', stash.backward(0))
    print('trained      ', train(torch.tensor([8.0]), lambda w, i: w.clone(), 6, 2, 0.5))
