import torch


def cut(tensor, size):
    least, more = divmod(tensor.shape[0], size)
    ends = [i * least + min(i, more) for i in range(size + 1)]
    return [tensor[a:b] for a, b in zip(ends, ends[1:])]


def reduce_scatter(pieces, rank):
    """The other way round the ring."""
    to, source = (rank.rank - 1) % rank.size, (rank.rank + 1) % rank.size
    partial = pieces[source]
    for step in range(rank.size - 1):
        rank.send(partial, to)
        partial = torch.add(rank.receive(source), pieces[(rank.rank + step + 2) % rank.size])
    return partial


def all_gather(piece, rank):
    to, source = (rank.rank - 1) % rank.size, (rank.rank + 1) % rank.size
    pieces = {}
    for step in range(rank.size):
        pieces[(rank.rank + step) % rank.size] = piece
        if step + 1 < rank.size:
            rank.send(piece, to)
            piece = rank.receive(source)
    return [pieces[i] for i in range(rank.size)]


def all_reduce(tensor, rank):
    pieces = cut(tensor, rank.size)
    gathered = all_gather(reduce_scatter(pieces, rank), rank)
    return torch.cat(gathered, dim=0)
