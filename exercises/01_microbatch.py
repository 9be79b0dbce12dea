"""Exercise 01: cut a mini-batch into micro-batches, and put it back (about 20 minutes).

A pipeline works on several micro-batches at a time. Their sizes need not be equal, and what is learned must not depend
on them.

    ./workshop.py check 01       # is it right?
    ./workshop.py run exercises/01_microbatch.py
"""

import torch


def sizes(rows: int, chunks: int) -> list[int]:
    """The number of rows of every micro-batch.

    They differ by one at most, larger ones first, and none is empty: where there are fewer rows than chunks, there are
    as many micro-batches as rows. `rows` and `chunks` are at least 1.

        sizes(8, 4)  ->  [2, 2, 2, 2]
        sizes(5, 4)  ->  [2, 1, 1, 1]
        sizes(2, 4)  ->  [1, 1]
    """
    # TODO STEP 1: how many micro-batches are there, how many rows has each, and who gets one more?
    # END


def scatter(batch: torch.Tensor, chunks: int) -> list[torch.Tensor]:
    """The micro-batches of a mini-batch, in order, cut along its first dimension; of `sizes(len(batch), chunks)` rows.

    A row may have a shape of its own. Dtype and graph stay: gradients of the micro-batches come back to the batch.

        scatter(torch.tensor([10, 20, 30, 40, 50]), 2)  ->  [tensor([10, 20, 30]), tensor([40, 50])]
    """
    # TODO STEP 2: take the rows one micro-batch after the other; each begins where the one before it has ended
    # END


def gather(micro_batches: list[torch.Tensor]) -> torch.Tensor:
    """The mini-batch of which these are the micro-batches. Shape of a row, dtype and graph stay.

        gather([tensor([10, 20, 30]), tensor([40, 50])])  ->  tensor([10, 20, 30, 40, 50])
    """
    # TODO STEP 3: the other way round
    # END


def mean_loss(losses: list[torch.Tensor], rows: list[int]) -> torch.Tensor:
    """The mean loss of the mini-batch; losses[i] is the mean over the rows[i] rows of micro-batch i.

    It has to be differentiable: its gradients are those of the plain model on the whole mini-batch.

        mean_loss([tensor(1.), tensor(4.)], [2, 1])  ->  tensor(2.)      since (1 + 1 + 4) / 3 = 2
    """
    # TODO STEP 4: every row counts the same, in whichever micro-batch it is
    # END


if __name__ == '__main__':
    batch = torch.tensor([10, 20, 30, 40, 50])
    print('sizes    ', sizes(5, 4))
    print('scatter  ', scatter(batch, 2))
    print('gather   ', gather(scatter(batch, 2)))
    print('mean_loss', mean_loss([torch.tensor(1.0), torch.tensor(4.0)], [2, 1]))
