# misconception: round-up
import torch


def sizes(rows, chunks):
    return [len(part) for part in torch.zeros(rows).chunk(chunks)]


def scatter(batch, chunks):
    return list(torch.chunk(batch, chunks))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
