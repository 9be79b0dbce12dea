# misconception: dtype
import torch


def cut(tensor, size):
    least, more = divmod(len(tensor), size)
    return list(tensor.split([least + 1] * more + [least] * (size - more)))


def reduce_scatter(pieces, rank):
    n, r = rank.size, rank.rank
    total = torch.zeros(len(pieces[(r - 1) % n]))
    for k in range(n - 1):
        rank.send(total + pieces[(r - 1 - k) % n], (r + 1) % n)
        total = rank.receive((r - 1) % n)
    return total + pieces[r]


def all_gather(piece, rank):
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    pieces = [piece] * rank.size
    for distance in range(1, rank.size):
        rank.send(piece, right)
        piece = pieces[(rank.rank - distance) % rank.size] = rank.receive(left)
    return pieces


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
