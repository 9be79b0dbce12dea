"""Exercise 02: add up a tensor over all ranks, round a ring (about 40 minutes).

Ranks that train together add up their gradients after every step. If one rank collected all tensors and sent the sum
back, its wire would be the bottleneck: N ranks with tensors of S bytes send and receive 2 (N - 1) S bytes over it. Round
a ring all send at the same time, each 2 (N - 1) / N S: less than twice its tensor, however many ranks there are.

The tensor is cut into as many pieces as there are ranks. * is the sum of a piece over all ranks:

    rank 0   a0 b0 c0                    *  .  .                 *  *  *
    rank 1   a1 b1 c1   reduce-scatter   .  *  .   all-gather    *  *  *
    rank 2   a2 b2 c2        ->          .  .  *       ->        *  *  *

Your functions run on all ranks at once. They get their `rank`:

    rank.rank, rank.size       my number, 0 to size - 1, and how many there are
    rank.send(tensor, to)      send a copy to rank number `to`; returns at once, without waiting for the other one
    rank.receive(source)       wait for the next tensor from rank number `source`, and return it

A rank sends only to its right neighbour, its number + 1, and receives only from its left one; right of the last is
rank 0. The ranks are threads on a network with a clock of its own: a message takes latency + bytes / bandwidth seconds.

    ./workshop.py check 02       # is it right?
    ./workshop.py run exercises/02_all_reduce.py
"""

import torch

from fewgpu.workshop.practice.ranks import Rank, run_ranks


def cut(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The tensor, of one dimension, in `size` pieces, in order.

    Their lengths differ by one at most, longer ones first. A tensor shorter than `size` has empty pieces at the
    end; one without any numbers, only those.

        cut(tensor([1, 2, 3, 4, 5]), 2)  ->  [tensor([1, 2, 3]), tensor([4, 5])]
        cut(tensor([1, 2]), 3)           ->  [tensor([1]), tensor([2]), tensor([])]
    """
    # TODO STEP 1: `size` pieces of any tensor: what if the length does not divide, or is less than `size`?
    # END


def reduce_scatter(pieces: list[torch.Tensor], rank: Rank) -> torch.Tensor:
    """The sum over all ranks of their pieces[rank.rank]. `pieces` itself stays as it is.

    All ranks call this at the same time, with as many pieces as there are ranks; pieces[i] is as long on every rank.
    In size - 1 rounds, every rank sends one piece to the right in each and receives another from the left. A partial
    sum travels on, and every rank on its way adds its own share to it; the sum of piece i ends its way at rank i.
    The result has the dtype of the pieces.

        rank 0: reduce_scatter([tensor([1]), tensor([2])], rank)    ->  tensor([11])     1 + 10
        rank 1: reduce_scatter([tensor([10]), tensor([20])], rank)  ->  tensor([22])     2 + 20
    """
    # TODO STEP 2: which piece goes first, so that its sum ends at the rank of its number? which one comes in?
    # END


def all_gather(piece: torch.Tensor, rank: Rank) -> list[torch.Tensor]:
    """The pieces of all ranks, in the order of the ranks. Their lengths may differ.

    In size - 1 rounds, every rank sends one piece to the right in each and receives another from the left: first its
    own, then what it has just received.

        rank 0: all_gather(tensor([11]), rank)  ->  [tensor([11]), tensor([22])]
        rank 1: all_gather(tensor([22]), rank)  ->  [tensor([11]), tensor([22])]
    """
    # TODO STEP 3: pass on what came; whose piece is it that comes in round 1, 2, ...?
    # END


def all_reduce(tensor: torch.Tensor, rank: Rank) -> torch.Tensor:
    """The sum of all ranks' tensors, on every rank. They have one dimension, the same length and the same dtype.

    `tensor` itself stays as it is. A rank alone gets a tensor with its own numbers.

        rank 0: all_reduce(tensor([1, 2, 3]), rank)     ->  tensor([11, 22, 33])
        rank 1: all_reduce(tensor([10, 20, 30]), rank)  ->  tensor([11, 22, 33])
    """
    # TODO STEP 4: put the three together
    # END


if __name__ == '__main__':
    tensors = [torch.tensor([1, 2, 3, 4, 5]) * 10**number for number in range(3)]
    print('cut           ', cut(tensors[0], 3))
    run = run_ranks(reduce_scatter, [(cut(tensor, 3),) for tensor in tensors])
    print('reduce_scatter', run.results)
    run = run_ranks(all_gather, [torch.tensor([11]), torch.tensor([22])])
    print('all_gather    ', run.results)
    run = run_ranks(all_reduce, tensors, latency=1.0, bandwidth=8.0)
    print('all_reduce    ', run.results)
    print(f'               {run.makespan:g} virtual seconds, bytes sent: {run.bytes_sent}')
