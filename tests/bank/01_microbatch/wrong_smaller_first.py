# misconception: smaller-first
import torch


def sizes(rows, chunks):
    count = min(rows, chunks)
    return [(rows + i) // count for i in range(count)]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
