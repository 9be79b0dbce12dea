# misconception: rest-in-last
import torch


def sizes(rows, chunks):
    chunks = min(chunks, rows)
    result = [rows // chunks for _ in range(chunks)]
    result[-1] += rows % chunks
    return result


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
