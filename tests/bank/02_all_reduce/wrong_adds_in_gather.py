# misconception: adds-in-gather
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
    pieces = [piece.clone() for _ in range(rank.size)]
    moving = piece
    for step in range(1, rank.size):
        rank.send(moving, right)
        moving = rank.receive(left)
        pieces[(rank.rank - step) % rank.size] += moving
    return pieces


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
