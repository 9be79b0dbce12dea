import torch
from collections import deque


def cut(tensor, size):
    parts = [[] for _ in range(size)]
    positions = list(range(len(tensor)))
    start = 0
    for i in range(size):
        count = len(range(i, len(tensor), size))
        parts[i] = tensor[positions[start]:positions[start] + count] if count else tensor[:0]
        start += count
    return parts


def reduce_scatter(pieces, rank):
    order = deque(range(rank.size))
    order.rotate(-rank.rank)                  # me, me + 1, ...
    travelling = list(reversed(order))        # me - 1, me - 2, ..., me
    value = pieces[travelling[0]]
    for number in travelling[1:]:
        rank.send(value, order[1])
        value = sum([rank.receive(order[-1]), pieces[number]])
    return value


def all_gather(piece, rank):
    def arrivals():
        newest = piece
        yield newest
        for _ in range(rank.size - 1):
            rank.send(newest, (rank.rank + 1) % rank.size)
            newest = rank.receive((rank.rank - 1) % rank.size)
            yield newest

    arrived = list(arrivals())
    return [arrived[(rank.rank - number) % rank.size] for number in range(rank.size)]


def all_reduce(tensor, rank):
    return torch.hstack(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
