import torch


def sizes(rows, chunks):
    return [len(part) for part in torch.empty(rows).tensor_split(min(rows, chunks))]


def scatter(batch, chunks):
    return torch.tensor_split(batch, min(len(batch), chunks))


def gather(micro_batches):
    return torch.concatenate(list(micro_batches), dim=0)


def mean_loss(losses, rows):
    weights = torch.tensor(rows, dtype=losses[0].dtype)
    return torch.dot(torch.stack(losses), weights) / weights.sum()
