# misconception: not-a-ring
import torch


def cut(tensor, size):
    least, more = divmod(len(tensor), size)
    return list(tensor.split([least + 1] * more + [least] * (size - more)))


def reduce_scatter(pieces, rank):
    others = [other for other in range(rank.size) if other != rank.rank]
    for other in others:
        rank.send(pieces[other], other)
    return sum([rank.receive(other) for other in others], pieces[rank.rank])


def all_gather(piece, rank):
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    pieces = [piece] * rank.size
    for distance in range(1, rank.size):
        rank.send(piece, right)
        piece = pieces[(rank.rank - distance) % rank.size] = rank.receive(left)
    return pieces


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
