# misconception: not-whole
import torch


def sizes(rows, chunks):
    count = min(rows, chunks)
    each = rows / count
    return [each for _ in range(count)]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
