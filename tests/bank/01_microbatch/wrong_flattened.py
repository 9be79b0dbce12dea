# misconception: flattened
import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat([part.flatten() for part in micro_batches])


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
