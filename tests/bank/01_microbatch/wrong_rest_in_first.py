# misconception: rest-in-first
import torch


def sizes(rows, chunks):
    chunks = min(chunks, rows)
    each = rows // chunks
    return [rows - each * (chunks - 1)] + [each] * (chunks - 1)


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
