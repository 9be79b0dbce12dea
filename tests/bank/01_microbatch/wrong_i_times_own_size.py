# misconception: wrong-start
import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    micro_batches = []
    for i, size in enumerate(sizes(len(batch), chunks)):
        micro_batches.append(batch[i * size:(i + 1) * size])
    return micro_batches


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
