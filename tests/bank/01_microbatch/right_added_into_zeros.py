import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    return list(batch.split(sizes(len(batch), chunks)))


def gather(micro_batches):
    whole = micro_batches[0]
    for part in micro_batches[1:]:
        whole = torch.vstack((whole, part)) if whole.dim() > 1 else torch.hstack((whole, part))
    return whole


def mean_loss(losses, rows):
    total = torch.zeros(())
    for i in range(len(losses)):
        total += losses[i] * rows[i]
    return total / sum(rows)
