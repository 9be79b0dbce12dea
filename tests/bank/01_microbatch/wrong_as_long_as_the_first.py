# misconception: wrong-start
import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    counts = sizes(len(batch), chunks)
    return [batch[i * counts[0]:(i + 1) * counts[0]] for i in range(len(counts))]


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
