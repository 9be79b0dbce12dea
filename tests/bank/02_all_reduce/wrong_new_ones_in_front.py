# misconception: reversed
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
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    pieces = [piece]
    for _ in range(rank.size - 1):
        rank.send(pieces[0], right)
        pieces.insert(0, rank.receive(left))
    return pieces


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
