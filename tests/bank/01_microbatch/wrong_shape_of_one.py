# misconception: not-a-scalar
import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    total = torch.zeros(1)
    for loss, count in zip(losses, rows):
        total = total + loss * count
    return total / sum(rows)
