import torch


def cut(tensor, size):
    return tensor.tensor_split(size)


def neighbours(rank):
    return (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size


def reduce_scatter(pieces, rank):
    right, left = neighbours(rank)
    mine = [p.clone() for p in pieces]
    for step in range(1, rank.size):
        rank.send(mine[(rank.rank - step) % rank.size], right)
        mine[(rank.rank - step - 1) % rank.size] += rank.receive(left)
    return mine[rank.rank]


def all_gather(piece, rank):
    right, left = neighbours(rank)
    found = {rank.rank: piece}
    for step in range(rank.size - 1):
        rank.send(found[(rank.rank - step) % rank.size], right)
        found[(rank.rank - step - 1) % rank.size] = rank.receive(left)
    return tuple(found[number] for number in sorted(found))


def all_reduce(tensor, rank):
    return torch.cat(all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank))
