# misconception: own-missing
import torch


def cut(tensor, size):
    least, more = divmod(len(tensor), size)
    return list(tensor.split([least + 1] * more + [least] * (size - more)))


def reduce_scatter(pieces, rank):
    me, size = rank.rank, rank.size
    if size == 1:
        return pieces[0]
    sums = [piece.clone() for piece in pieces]
    for step in range(1, size):
        rank.send(sums[(me - step) % size], (me + 1) % size)
        incoming = rank.receive((me - 1) % size)
        if step < size - 1:
            sums[(me - step - 1) % size] += incoming
    return incoming


def all_gather(piece, rank):
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    pieces = [piece] * rank.size
    for distance in range(1, rank.size):
        rank.send(piece, right)
        piece = pieces[(rank.rank - distance) % rank.size] = rank.receive(left)
    return pieces


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
