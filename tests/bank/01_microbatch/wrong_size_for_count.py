# misconception: size-for-count
import torch


def sizes(rows, chunks):
    return [chunks] * (rows // chunks) + ([rows % chunks] if rows % chunks else [])


def scatter(batch, chunks):
    return list(batch.split(chunks))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
