import torch


def lengths(n, size):
    return [n // size + (1 if i < n % size else 0) for i in range(size)]


def cut(tensor, size):
    result, start = [], 0
    for length in lengths(tensor.numel(), size):
        result.append(tensor[start:start + length])
        start = start + length
    return result


def reduce_scatter(pieces, rank):
    n, r = rank.size, rank.rank
    if n == 1:
        return pieces[0].clone()
    send_index = r - 1 if r > 0 else n - 1
    buffer = pieces[send_index].clone()
    rounds = 0
    while rounds < n - 1:
        rank.send(buffer, r + 1 if r < n - 1 else 0)
        buffer = rank.receive(r - 1 if r > 0 else n - 1)
        send_index = send_index - 1 if send_index > 0 else n - 1
        buffer.add_(pieces[send_index])
        rounds += 1
    return buffer


def all_gather(piece, rank):
    n, r = rank.size, rank.rank
    pieces = [None for _ in range(n)]
    pieces[r] = piece
    current = r
    for _ in range(n - 1):
        rank.send(pieces[current], (r + 1) % n)
        current = (current - 1) % n
        pieces[current] = rank.receive((r - 1) % n)
    return pieces


def all_reduce(tensor, rank):
    out = torch.empty_like(tensor)
    for place, piece in zip(cut(out, rank.size), all_gather(reduce_scatter(cut(tensor, rank.size), rank), rank)):
        place.copy_(piece)
    return out
