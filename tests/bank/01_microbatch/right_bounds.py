from itertools import accumulate, pairwise

import numpy
import torch


def bounds(rows, chunks):
    chunks = min(rows, chunks)
    counts = numpy.full(chunks, rows // chunks)
    counts[:rows % chunks] += 1
    return [0, *accumulate(counts)]


def sizes(rows, chunks):
    return [stop - start for start, stop in pairwise(bounds(rows, chunks))]


def scatter(batch, chunks):
    for start, stop in pairwise(bounds(len(batch), chunks)):
        yield batch[start:stop].clone()


def gather(micro_batches):
    return torch.vstack(micro_batches) if micro_batches[0].dim() > 1 else torch.hstack(micro_batches)


def mean_loss(losses, rows):
    losses, rows = torch.stack(losses), torch.as_tensor(rows)
    return (losses * rows).sum() / rows.sum()
