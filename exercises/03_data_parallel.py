"""Exercise 03: average gradients over ranks, while the backward goes on (about 50 minutes).

In data parallelism every rank has the whole model and its own rows of the mini-batch. All ranks have to take the same
step, the one that the plain model would take on all rows: so their gradients are averaged first. Done after the
backward, this is time in which nobody computes. But the gradients of the last layers are there long before it ends.

Your functions run on all ranks at once. They get their `rank`:

    rank.rank, rank.size                      my number, and how many there are
    handle = rank.start_all_reduce(tensor)    start to add up the tensors of all ranks; returns at once
    handle.wait()                             wait until `tensor` holds the sum (it is changed in place)

In between the tensor belongs to the network: do not read or change it. Nobody looks at names: the first reduction that
a rank starts goes with the first of every other rank, the second with the second. So all ranks have to start as many of
them, in the same order. The network works on one after the other. The ranks are threads, with a clock of their own.

    ./workshop.py check 03       # is it right?
    ./workshop.py run exercises/03_data_parallel.py
"""

import torch
from torch import nn

from fewgpu.workshop.practice.ranks import Rank, run_ranks


def share(rows: int, rank: Rank) -> float:
    """This rank's rows as a part of the rows of all ranks together. `rows`, at least 1, is what this rank has.

        rank 0: share(1, rank)  ->  0.25
        rank 1: share(3, rank)  ->  0.75
    """
    # TODO STEP 1: how many rows have all ranks together? (a tensor of one number can be reduced, too)
    # END


def average(parameters: list[nn.Parameter], share: float, rank: Rank) -> None:
    """After the backwards: every parameter's `.grad` becomes the plain model's, whose loss is the mean over all rows.

    The loss of every rank was the mean over its own rows, and `share` is what the function above returns. `parameters`
    has the same parameters in the same order on all ranks. Where a rank has no gradient (`.grad` is None), because it
    did not need that layer, it takes part with zeros, and has the average afterwards. The weights, which may
    have any shape, stay as they are.

        rank 0: .grad is tensor([1.]),  average([w], 0.25, rank)  ->  .grad is tensor([7.75])     0.25 * 1 + 0.75 * 10
        rank 1: .grad is tensor([10.]), average([w], 0.75, rank)  ->  .grad is tensor([7.75])
    """
    # TODO STEP 2: weigh this rank's gradient by its share, then add up over the ranks; and if it is None?
    # END


def backward(loss: torch.Tensor, parameters: list[nn.Parameter], share: float, rank: Rank) -> None:
    """`loss.backward()` and `average(parameters, share, rank)` in one: what is done when it returns is the same.

    But the reduction of a gradient begins as soon as the gradient is complete, while the backward goes on to earlier
    layers, and nobody waits before the backward has ended. Torch tells when: after

        hook = parameter.register_post_accumulate_grad_hook(function)

    it calls `function(parameter)` in every backward as soon as the `.grad` of that parameter is complete, until you
    call `hook.remove()`.

    - `parameters` has them in the order in which the layers use them: their gradients come in reverse.
    - That is only so as a rule: on a rank some may come in another order, or not at all. Still all ranks have to start
      the same reductions in the same order: so agree on one, and let a gradient that comes too early wait for its turn.
    - `.grad` may hold gradients of earlier backwards of this rank, which were not averaged: they are averaged along,
      also where this backward adds nothing to them.
    - `backward` is called once a step: the next call has to work as well.
    """
    # TODO STEP 3: who may start when its gradient is complete? who is left when the backward has ended? and then?
    # END


def try_it(data: torch.Tensor, rank: Rank) -> list[torch.Tensor]:
    """Three layers, whose backwards take 1 second each."""
    weights = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    x = data
    for weight in weights:
        x = rank.backward_takes(1.0, x + weight * data)
    backward(x.mean(), weights, share(len(data), rank), rank)
    return [weight.grad for weight in weights]


if __name__ == '__main__':
    rows = [torch.tensor([1.0]), torch.tensor([10.0, 10.0, 10.0])]
    print('share   ', run_ranks(lambda data, rank: share(len(data), rank), rows).results)
    run = run_ranks(try_it, rows, latency=0.25)
    print('backward', run.results)
    print(f'          {run.makespan:g} virtual seconds')
