# misconception: passed-on-raw
import torch


def cut(tensor, size):
    least, more = divmod(len(tensor), size)
    return list(tensor.split([least + 1] * more + [least] * (size - more)))


def reduce_scatter(pieces, rank):
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    if rank.size == 1:
        return pieces[0]
    moving = pieces[left]
    for _ in range(rank.size - 1):
        rank.send(moving, right)
        moving = rank.receive(left)
    return pieces[rank.rank] + moving


def all_gather(piece, rank):
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    pieces = [piece] * rank.size
    for distance in range(1, rank.size):
        rank.send(piece, right)
        piece = pieces[(rank.rank - distance) % rank.size] = rank.receive(left)
    return pieces


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
