import torch


def sizes(rows, chunks):
    chunks = min(rows, chunks)
    return [rows // chunks + (i < rows % chunks) for i in range(chunks)]


def scatter(batch, chunks):
    found, start = [], 0
    for size in sizes(len(batch), chunks):
        found.append(batch.index_select(0, torch.arange(start, start + size)))
        start += size
    return found


def gather(micro_batches):
    return torch.cat(micro_batches)


def mean_loss(losses, rows):
    weights = torch.tensor(rows) / sum(rows)
    return (torch.stack(losses) * weights).sum()
