# misconception: round-up
import torch


def sizes(rows, chunks):
    size = -(-rows // chunks)
    found = []
    while rows > 0:
        found.append(min(size, rows))
        rows -= size
    return found


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
