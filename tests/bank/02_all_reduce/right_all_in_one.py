import torch


class Ring:
    def __init__(self, rank):
        self.rank = rank

    def index(self, offset):
        return (self.rank.rank + offset) % self.rank.size

    def exchange(self, tensor):
        self.rank.send(tensor, self.index(1))
        return self.rank.receive(self.index(-1))


def cut(tensor, size):
    if len(tensor) % size == 0:
        return [tensor[i * len(tensor) // size:(i + 1) * len(tensor) // size] for i in range(size)]
    return list(torch.tensor_split(tensor, size))


def reduce_scatter(pieces, rank):
    ring = Ring(rank)
    sums = list(pieces)
    for k in range(rank.size - 1):
        sums[ring.index(-k - 2)] = sums[ring.index(-k - 2)] + ring.exchange(sums[ring.index(-k - 1)])
    return sums[rank.rank]


def all_gather(piece, rank):
    ring = Ring(rank)
    received = [piece]
    for k in range(rank.size - 1):
        received.append(ring.exchange(received[k]))
    return [received[(rank.rank - j) % rank.size] for j in range(rank.size)]


def all_reduce(tensor, rank):
    """Without the other functions."""
    if rank.size == 1:
        return tensor.clone()
    ring, pieces = Ring(rank), [p.clone() for p in cut(tensor, rank.size)]
    for k in range(rank.size - 1):
        pieces[ring.index(-k - 1)] += ring.exchange(pieces[ring.index(-k)])
    for k in range(rank.size - 1):
        pieces[ring.index(-k)] = ring.exchange(pieces[ring.index(1 - k)])
    return torch.cat(pieces)
