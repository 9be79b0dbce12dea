# misconception: other-dtype
import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    rows, micro_batches = batch.tolist(), []
    for size in sizes(len(batch), chunks):
        micro_batches.append(torch.tensor(rows[:size]))
        rows = rows[size:]
    return micro_batches


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
