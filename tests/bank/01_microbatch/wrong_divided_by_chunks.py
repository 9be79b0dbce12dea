# misconception: divided-by-count
import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    return torch.mean(torch.stack(losses) * torch.tensor(rows))
