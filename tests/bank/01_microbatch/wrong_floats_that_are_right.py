# misconception: not-whole
import math

import torch


def sizes(rows, chunks):
    count = min(rows, chunks)
    each = math.floor(rows / count)
    more = rows - count * each
    return [float(each + 1)] * more + [float(each)] * (count - more)


def scatter(batch, chunks):
    return list(batch.tensor_split(min(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
