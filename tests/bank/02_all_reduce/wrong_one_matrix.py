# misconception: divisible-only
import torch


def cut(tensor, size):
    least, more = divmod(len(tensor), size)
    return list(tensor.split([least + 1] * more + [least] * (size - more)))


def reduce_scatter(pieces, rank):
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    partial = pieces[left]
    for distance in range(2, rank.size + 1):
        rank.send(partial, right)
        partial = rank.receive(left) + pieces[(rank.rank - distance) % rank.size]
    return partial


def all_gather(piece, rank):
    n, r = rank.size, rank.rank
    found = torch.zeros(n, len(piece), dtype=piece.dtype)
    found[r] = piece
    for k in range(1, n):
        rank.send(found[(r - k + 1) % n], (r + 1) % n)
        found[(r - k) % n] = rank.receive((r - 1) % n)
    return list(found)


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
