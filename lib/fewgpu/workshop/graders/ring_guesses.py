"""What the ranks would have if they added up wrongly. Each takes (size, tensors), and returns the answers of all."""

from collections.abc import Callable

import torch

from fewgpu.workshop.graders.ring_shares import pieces

Tensors = list[torch.Tensor]
Guess = Callable[[int, Tensors], list]
Held = Callable[[int, int], torch.Tensor]   # what a rank has of a piece


def cut_all(tensors: Tensors) -> list[Tensors]:
    """The pieces of every rank."""
    return [pieces(tensor, len(tensors)) for tensor in tensors]


def sums(size: int, tensors: Tensors, shift: int = 0) -> Tensors:
    """Every rank has the sum of its piece, or of the one `shift` further: the truth of the reduce-scatter."""
    whole = pieces(sum(tensors), size)
    return [whole[(rank + shift) % size] for rank in range(size)]


def own(size: int, tensors: Tensors, shift: int = 0, neighbour: int = 0) -> Tensors:
    """Its own share of it, or that of a neighbour."""
    every = cut_all(tensors)
    return [every[(rank + neighbour) % size][(rank + shift) % size] for rank in range(size)]


def plus_own(times: float, shift: int = 0) -> Guess:
    """The sum, and so many times its own share."""
    return lambda size, tensors: [whole + times * mine for whole, mine in
                                  zip(sums(size, tensors, shift), own(size, tensors, shift))]


def one_more_round(shift: int) -> Guess:
    """The neighbour's sum, to which the own share has been added again."""
    def guess(size: int, tensors: Tensors) -> Tensors:
        if size == 1:
            raise ValueError('a rank alone has no neighbour')
        return plus_own(1, shift)(size, tensors)
    return guess


def ring(start: int, added: Callable[[int], int], rounds: Callable[[int], int] = lambda size: size - 1) -> Guess:
    """A ring in which rank r begins with its piece r + start, and adds piece r + added(k) to what comes in round k."""
    def guess(size: int, tensors: Tensors) -> Tensors:
        if size == 1 and rounds(size):
            raise ValueError('a rank alone has no neighbour')
        every = cut_all(tensors)
        partial = [every[rank][(rank + start) % size] for rank in range(size)]
        for k in range(rounds(size)):
            partial = [partial[rank - 1] + every[rank][(rank + added(k)) % size] for rank in range(size)]
        return partial
    return guess


def passed_on_raw(size: int, tensors: Tensors) -> Tensors:
    """The own share, and all that came by: nobody has added anything to it."""
    every = cut_all(tensors)
    return [sum((every[(rank - k) % size][(rank - k - 1) % size] for k in range(1, size)), every[rank][rank])
            for rank in range(size)]


def last_raw(size: int, tensors: Tensors) -> Tensors:
    """The own share, and what came last, to which nobody has added anything."""
    return [mine + others for mine, others in zip(own(size, tensors), own(size, tensors, 0, 1))] if size > 1 \
        else own(size, tensors)


def if_divisible(guess: Guess) -> Guess:
    """An exception where pieces differ in length."""
    def answer(size: int, tensors: Tensors) -> list:
        if len(tensors[0]) % size:
            raise ValueError('pieces of different lengths')
        return guess(size, tensors)
    return answer


def without_own(size: int, tensors: Tensors) -> Tensors:
    """The sum without its own share, where there are others."""
    return plus_own(-1)(size, tensors) if size > 1 else own(size, tensors)


def gathered(order: Callable[[int, int], int]) -> Guess:
    """Rank r has in place p the piece of rank order(r, p), modulo size."""
    def guess(size: int, tensors: Tensors) -> list[Tensors]:
        mine = own(size, tensors)
        return [[mine[order(rank, place) % size] for place in range(size)] for rank in range(size)]
    return guess


def own_place_empty(size: int, tensors: Tensors) -> list[list]:
    """All pieces but the own one."""
    mine = own(size, tensors)
    return [[None if place == rank else mine[place] for place in range(size)] for rank in range(size)]


def gathered_and_added(in_place: bool, passed_on: bool) -> Guess:
    """An all-gather that adds its own piece to what comes in, and maybe passes that on."""
    def guess(size: int, tensors: Tensors) -> list[Tensors]:
        mine = own(size, tensors)
        if in_place and len({len(piece) for piece in mine}) > 1:
            raise ValueError('pieces of different lengths cannot be added')
        return [[sum(mine[(place + hop) % size] for hop in range((rank - place) % size + 1)) if passed_on else
                 mine[place] + mine[rank] * (place != rank) for place in range(size)] for rank in range(size)]
    return guess


def _mine(size: int, tensors: Tensors) -> Held:
    every = cut_all(tensors)
    return lambda rank, piece: every[rank][piece]


def _so_far(size: int, tensors: Tensors) -> Held:
    """The partial sum of a piece when it comes by at a rank: of the ranks piece + 1 to rank."""
    every = cut_all(tensors)
    return lambda rank, piece: sum(every[(piece + 1 + hop) % size][piece]
                                   for hop in range((rank - piece) % size or size))


def _nothing(size: int, tensors: Tensors) -> Held:
    every = cut_all(tensors)
    return lambda rank, piece: torch.zeros_like(every[rank][piece])


def _only_own(others: Callable[[int, Tensors], Held]) -> Guess:
    """The sum in a rank's own piece, and `others` in all others."""
    def guess(size: int, tensors: Tensors) -> Tensors:
        whole, held = pieces(sum(tensors), size), others(size, tensors)
        return [torch.cat([whole[rank] if piece == rank else held(rank, piece) for piece in range(size)])
                for rank in range(size)]
    return guess


def _growing(adds: Callable[[int, Tensors], Held]) -> Guess:
    """An all-gather in which every rank adds to what comes by."""
    def guess(size: int, tensors: Tensors) -> Tensors:
        whole, held = pieces(sum(tensors), size), adds(size, tensors)
        return [torch.cat([sum((held((piece + hop) % size, piece) for hop in range(1, (rank - piece) % size + 1)),
                               whole[piece]) for piece in range(size)]) for rank in range(size)]
    return guess


def turned(step: int) -> Guess:
    """The sum, but the pieces in the order in which they came."""
    def guess(size: int, tensors: Tensors) -> Tensors:
        whole = pieces(sum(tensors), size)
        return [torch.cat([whole[(rank + step * place) % size] for place in range(size)]) for rank in range(size)]
    return guess


NO_ALL_GATHER = [sums, _only_own(_mine), _only_own(_so_far), _only_own(_nothing)]
ADDS_IN_GATHER = [_growing(_mine), _growing(_so_far)]
