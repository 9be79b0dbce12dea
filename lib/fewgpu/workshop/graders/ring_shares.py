"""What is in a tensor that ranks have added up: whose share, how often, piece by piece."""

from collections.abc import Callable

import torch

Cell = tuple[float, ...]   # how often each rank's share is in it
OTHER = (-1.0,)            # it is not made of shares of this piece


def lengths(length: int, size: int) -> list[int]:
    """Of the pieces: piece i has the positions i, i + size, ... if they are dealt out, and so many if they are not."""
    return [len(range(piece, length, size)) for piece in range(size)]


def pieces(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Those into which a tensor is cut, truly."""
    return list(tensor.split(lengths(len(tensor), size)))


def decode(reduce: Callable[[list[torch.Tensor]], list[torch.Tensor]], size: int, length: int) -> list[list[Cell]]:
    """What every rank has in every piece. `reduce` takes the tensors of all ranks and returns the results of all ranks.

    Only one rank at a time has other numbers than 0, and they say at which position they were.
    """
    alone, marks = [], torch.arange(101, 101 + length, dtype=torch.float64)   # no multiple of one is another
    for source in range(size):
        given = [torch.zeros(length, dtype=torch.float64) for _ in range(size)]
        given[source] = marks
        alone.append([pieces(result, size) for result in reduce(given)])
    marked = pieces(marks, size)
    return [[_cell([alone[source][rank][piece] / marked[piece] for source in range(size)]) for piece in range(size)]
            for rank in range(size)]


def _cell(counts: list[torch.Tensor]) -> Cell:
    if not counts[0].numel():
        return tuple(1.0 for _ in counts)
    size = len(counts)
    same = all(bool((count == count[0]).all()) and float(count[0] * size).is_integer() for count in counts)
    return tuple(float(count[0]) for count in counts) if same else OTHER


def sentence(rank: int, piece: int, cell: Cell) -> str:
    """What is wrong with a piece; '' if nothing is."""
    if cell == OTHER:
        return f'piece {piece} of rank {rank} holds numbers of another place'
    for source, count in enumerate(cell):
        if count == 0:
            return f"piece {piece} of rank {rank} lacks rank {source}'s share"
        if count != 1:
            return f"piece {piece} of rank {rank} has rank {source}'s share {count:g} times"
    return ''


def wrong(cells: list[list[Cell]]) -> list[tuple[int, int]]:
    """(rank, piece) of all that are."""
    return [(rank, piece) for rank, row in enumerate(cells) for piece, cell in enumerate(row)
            if sentence(rank, piece, cell)]


def picture(cells: list[list[Cell]]) -> str:
    """The pieces of all ranks. S: the sum; otherwise, the ranks whose shares are in it."""
    table = [[''] + [f'piece {piece}' for piece in range(len(cells))]]
    table += [[f'rank {rank}'] + [_text(cell) for cell in row] for rank, row in enumerate(cells)]
    width = max(9, *(len(text) + 2 for row in table for text in row))
    if width * len(table[0]) > 78:
        return ''
    lines = [''.join(text.ljust(width) for text in row).rstrip() for row in table]
    return '\n'.join([*lines, '', 'S: the sum over all ranks. 0+2: only the shares of ranks 0 and 2 are in it.'])


def _text(cell: Cell) -> str:
    if all(count == 1 for count in cell):
        return 'S'
    if cell == OTHER:
        return 'other'
    if any(count != int(count) or count < 0 or count > 3 for count in cell):
        return 'S times ' + f'{cell[0]:.2g}' if len(set(cell)) == 1 else 'other'
    return '+'.join(str(source) for source, count in enumerate(cell) for _ in range(int(count))) or 'nothing'


def explain(reduce: Callable[[list[torch.Tensor]], list[torch.Tensor]], size: int, length: int) -> tuple[str, str]:
    """A sentence on the first piece that is wrong, and a picture of all. Both '' where that cannot be told."""
    try:
        cells = decode(reduce, size, length)
    except Exception:   # it is the learner's code, and has been judged already
        return '', ''
    return next((sentence(rank, piece, cells[rank][piece]) for rank, piece in wrong(cells)), ''), \
        picture(cells) if wrong(cells) else ''
