# misconception: smaller-first
import torch


def sizes(rows, chunks):
    count = min(rows, chunks)
    bounds = [round(i * rows / count) for i in range(count + 1)]
    return [stop - start for start, stop in zip(bounds, bounds[1:])]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return sum(loss * count for loss, count in zip(losses, rows)) / sum(rows)
