"""Grader of exercise 02. Laws: every share once, for any ranks and lengths; bytes on the wire; virtual time."""

from collections.abc import Callable
from itertools import product
from random import Random

import torch

from fewgpu.workshop.graders import ring_guesses as guesses
from fewgpu.workshop.graders import ring_shares, ring_traffic, rings
from fewgpu.workshop.graders.ring_guesses import Tensors
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.grading.work import Work

FORBIDDEN = ('fewgpu.collectives', 'fewgpu.buckets', 'torch.distributed.all_reduce',
             'torch.distributed.reduce_scatter', 'torch.distributed.all_gather',
             'fewgpu.workshop.practice.ranks.Rank.start_all_reduce')

MISCONCEPTIONS = {
    'loses-rest': 'all pieces have the same length, and the numbers that are left over belong to none',
    'rest-in-one': 'the numbers that are left over all go into one piece: every round takes as long as the longest '
                   'piece',
    'round-up': 'every piece is as long as the first until nothing is left: the last is shorter than it has to be, or '
                'empty, and in every round some wait for the others',
    'fewer-pieces': 'there are fewer pieces than ranks: a rank without a piece has nothing to send',
    'shorter-first': 'the longer pieces come last, and the docstring asks for them first',
    'receives-first': 'every rank waits for its neighbour before it sends anything, so nobody ever sends',
    'divisible-only': 'it works only where the length divides by the number of ranks: pieces may differ in length',
    'dealt-out': 'the numbers are dealt out like cards, and not one after the other: joined again they are in another '
                 'order',
    'own-only': "a rank's result is its own piece: what the others have is not in it",
    'wrong-piece': 'the sum that ends at a rank is that of a neighbouring piece: the first piece to send is one off',
    'counts-up': 'the pieces are counted up from round to round: from the left comes the sum of the piece before, so '
                 'they are counted down',
    'passed-on-raw': 'what comes in is passed on as it is: a partial sum travels, and every rank on its way adds its '
                     'own share to it before it sends it on',
    'overwrites': "what comes in takes the place of the rank's own share, and has to be added to it",
    'own-twice': "a rank's own share is in the sum twice",
    'own-missing': "the last share is missing: what comes in the last round still lacks the rank's own",
    'extra-round': 'there is a round too many: size - 1 rounds take a piece to all ranks, one more takes it too far',
    'round-missing': 'there is a round too few: it takes size - 1 of them until a sum has been at all ranks',
    'mean': 'the result is the mean; the sum is asked for',
    'own-everywhere': 'a rank has its own piece in every place: what it receives is not kept',
    'own-lost': "a rank's own piece is missing among those of all ranks",
    'reversed': 'the pieces are in the order in which they came in, not in the order of the ranks',
    'wrong-place': 'what comes in is put into a wrong place: round k, counted from 1, brings the piece of rank r - k',
    'own-again': 'every rank sends its own piece in every round: what came in has to be passed on',
    'adds-in-gather': 'pieces are added in the all-gather, where a finished sum only has to be copied',
    'no-all-gather': 'the all-gather is missing: a rank has the sum of its own piece only',
    'not-joined': 'the result is a list of pieces: they still have to be joined to one tensor',
    'changes-input': "the rank's own tensor is changed: pieces are views of it, so adding into them in place adds into "
                     'it',
    'changes-list': 'the list `pieces` is changed: it is the list of whoever calls, so make one of your own first',
    'dtype': 'the sum has another dtype than the tensors: torch.zeros and torch.empty make float32 unless they are '
             'told',
    'whole-tensor': 'whole tensors are sent, not pieces: round a ring that makes (N - 1) S bytes a rank, the more the '
                    'more ranks there are',
    'root': 'one rank collects everything: its wire carries what should be spread over all of them',
    'not-a-ring': 'ranks send to others than one neighbour, always the same',
    'one-after-another': 'the ranks send one after the other: each waits for its left neighbour before it sends, so '
                         'all wires but one are idle',
}

HINTS = {
    'cut': Hints(
        idea='Seven numbers for three ranks: how many does each get, and how many get one more? Two numbers for three '
             'ranks?',
        place='`cut`: divmod of the length and size; some function of torch takes a list of lengths.',
        outline='least, more = divmod(length, size)\n`more` pieces of least + 1 numbers, then size - more of least'),
    'reduce_scatter': Hints(
        idea='Follow one piece: it has to end at the rank of its number and visit all the others before. Where does '
             'it begin? Draw three ranks on paper.',
        place='`reduce_scatter`: piece i begins at rank i + 1. So rank r begins with piece r - 1, and in the next '
              'round comes piece r - 2. All indices count modulo size.',
        outline='partial = my share of piece r - 1\nfor distance 2, 3, ..., size:\n    send partial to the right\n'
                '    partial = what comes from the left + my share of piece r - distance\nreturn partial'),
    'all_gather': Hints(
        idea='Your left neighbour first sends its own piece, then the one of its left neighbour, then ...',
        place='`all_gather`: what comes in round 1 is the piece of rank r - 1, in round 2 that of rank r - 2 (modulo '
              'size).',
        outline='a list of `size` places, my own piece in place r\nfor distance 1, ..., size - 1:\n    send the '
                'newest piece to the right\n    receive one from the left and put it into place r - distance'),
    'all_reduce': Hints(
        idea='Reduce-scatter leaves one finished piece at every rank; all-gather brings every rank all of them.',
        place='`all_reduce`: three calls and one function of torch that joins the pieces.',
        outline='cut; reduce_scatter of the pieces; all_gather of the piece that it returns; join'),
}
HINTS['traffic'] = Hints(
    idea='A rank never needs to send more than one piece a round. Does yours send a whole tensor, or to everybody?',
    place='All calls of `send`: what is sent, and to whom.', outline=HINTS['reduce_scatter'].outline)
HINTS['time'] = Hints(
    idea='send does not wait. Whoever waits for the left neighbour before it sends lets its own wire stand idle.',
    place='The order of `send` and `receive` in a round.',
    outline='in every round, on every rank: first send, then receive')


@check('a tensor is cut into as many pieces as there are ranks', points=1)
def cut(work: Work, random: Random) -> None:
    def tensor(case: tuple[int, int]) -> torch.Tensor:
        return torch.arange(1, case[0] + 1)

    def split(lengths: Callable[[int, int], list[int]]) -> Callable[[tuple[int, int]], list[torch.Tensor]]:
        return lambda case: list(tensor(case).split(lengths(*case)))

    def rest(place: int) -> Callable[[int, int], list[int]]:
        def lengths(length: int, size: int) -> list[int]:
            answer = [length // size] * size
            answer[place] += length % size
            return answer
        return lengths

    def equal_pieces(case: tuple[int, int]) -> list[torch.Tensor]:
        each = case[0] // case[1]
        return [tensor(case)[piece * each:(piece + 1) * each] for piece in range(case[1])]

    def rounded_up(case: tuple[int, int]) -> list[torch.Tensor]:
        each = -(-case[0] // case[1])
        return [tensor(case)[piece * each:(piece + 1) * each] for piece in range(case[1])]

    def divisible(case: tuple[int, int]) -> list[torch.Tensor]:
        if case[0] % case[1] or not case[0]:
            raise ValueError('the length does not divide')
        return equal_pieces(case)

    cases = sorted(((length, size) for length in range(1, 8) for size in range(1, 5)), key=sum)
    cases += [(0, size) for size in range(1, 5)]
    cases += [(random.randrange(20, 90), random.randrange(2, 12)) for _ in range(10)]
    judge(cases, lambda case: rings.listed(work.cut(tensor(case), case[1])), split(ring_shares.lengths), suspects=[
        Suspect('loses-rest', equal_pieces),
        Suspect('divisible-only', divisible),
        Suspect('dealt-out', lambda case: [tensor(case)[piece::case[1]] for piece in range(case[1])]),
        Suspect('rest-in-one', split(rest(-1))), Suspect('rest-in-one', split(rest(0))),
        Suspect('fewer-pieces', lambda case: list(tensor(case).chunk(case[1]))),
        Suspect('fewer-pieces', lambda case: list(tensor(case).tensor_split(min(case)))),
        Suspect('fewer-pieces', lambda case: list(tensor(case).tensor_split(min(case) or 1))),
        Suspect('round-up', rounded_up),
        Suspect('shorter-first', split(lambda length, size: ring_shares.lengths(length, size)[::-1])),
    ], tell=lambda case, got, wanted: f'cut({shown(tensor(case))}, {case[1]})\n'
                                      f'yours     {shown(got)}\nexpected  {shown(wanted)}',
        lines=work.definition('cut'))


@check('after the reduce-scatter every rank has the sum of its piece', points=2)
def reduce_scatter(work: Work, random: Random) -> None:
    def reduced(tensors: Tensors) -> Tensors:
        """The own pieces from the work, and all others right."""
        run = rings.run(lambda given, rank: work.reduce_scatter(given, rank), guesses.cut_all(tensors))
        right = guesses.cut_all([sum(tensors)] * len(tensors))
        return [torch.cat([*parts[:rank], run.results[rank], *parts[rank + 1:]]) for rank, parts in enumerate(right)]

    def all_(size: int) -> int:
        return size

    rings.judged(work, 'reduce_scatter', random, guesses.cut_all, guesses.sums, {
        'own-only': [guesses.own],
        'overwrites': [lambda size, tensors: guesses.own(size, tensors, neighbour=1)],
        'wrong-piece': [guesses.plus_own(0, 1), guesses.plus_own(0, -1)],
        'own-twice': [guesses.plus_own(1)],
        'own-missing': [guesses.without_own, guesses.plus_own(-1)],
        'extra-round': [guesses.one_more_round(-1), guesses.one_more_round(1), guesses.ring(-1, lambda k: -k - 2, all_),
                        guesses.ring(-1, lambda k: -k - 1, all_), guesses.ring(0, lambda k: -k - 1, all_)],
        'round-missing': [guesses.ring(-1, lambda k: -k - 2, lambda size: size - 2)],
        'counts-up': [guesses.ring(1, lambda k: k + 2), guesses.ring(-1, lambda k: k),
                      guesses.ring(0, lambda k: k + 1)],
        'passed-on-raw': [guesses.passed_on_raw, guesses.last_raw],
        'divisible-only': [guesses.if_divisible(guesses.sums)],
        'mean': [lambda size, tensors: [part / size for part in guesses.sums(size, tensors)]],
        'dtype': [lambda size, tensors: [part.float() for part in guesses.sums(size, tensors)]],
    }, reduced)
    rings.verify_untouched(work, 'reduce_scatter', guesses.cut_all)


@check('after the all-gather every rank has all pieces, in order', points=2)
def all_gather(work: Work, random: Random) -> None:
    def own(tensors: Tensors) -> Tensors:
        return guesses.own(len(tensors), tensors)

    in_place = guesses.gathered
    rings.judged(work, 'all_gather', random, own, in_place(lambda rank, place: place), {
        'own-everywhere': [in_place(lambda rank, place: rank)],
        'own-again': [in_place(lambda rank, place: rank - (place != rank))],
        'own-lost': [guesses.own_place_empty],
        'reversed': [in_place(lambda rank, place: rank - place), in_place(lambda rank, place: rank + place),
                     in_place(lambda rank, place: rank + place + 1)],
        'wrong-place': [in_place(lambda rank, place: place - (place != rank)), in_place(lambda rank, place: place - 1),
                        in_place(lambda rank, place: place + (place != rank)), in_place(lambda rank, place: place + 1),
                        in_place(lambda rank, place: 2 * rank - place)],
        'divisible-only': [guesses.if_divisible(in_place(lambda rank, place: place))],
        'adds-in-gather': [guesses.gathered_and_added(*how) for how in product((True, False), repeat=2)],
    })


@check('every rank has the sum of all tensors, and its own tensor is as it was', points=2,
       after=['cut', 'reduce_scatter', 'all_gather'])
def all_reduce(work: Work, random: Random) -> None:
    def reduced(tensors: Tensors) -> Tensors:
        return rings.run(lambda tensor, rank: work.all_reduce(tensor, rank), tensors).results

    rings.judged(work, 'all_reduce', random, list, lambda size, tensors: [sum(tensors)] * size, {
        'own-only': [lambda size, tensors: tensors],
        'no-all-gather': guesses.NO_ALL_GATHER,
        'adds-in-gather': guesses.ADDS_IN_GATHER,
        'reversed': [guesses.turned(-1), guesses.turned(1)],
        'not-joined': [lambda size, tensors: [guesses.sums(size, tensors)] * size],
        'divisible-only': [guesses.if_divisible(lambda size, tensors: [sum(tensors)] * size)],
        'mean': [lambda size, tensors: [sum(tensors) / size] * size],
        'dtype': [lambda size, tensors: [sum(tensors).float()] * size],
    }, reduced)
    rings.verify_untouched(work, 'all_reduce', list)


@check('a rank sends 2 (N - 1) / N of its tensor, all to one neighbour', points=2, after=['all_reduce'])
def traffic(work: Work, random: Random) -> dict[str, str]:
    return ring_traffic.verify_bytes(work, random)


@check('all wires are busy at the same time', points=1, after=['traffic'])
def time(work: Work, random: Random) -> dict[str, str]:
    return ring_traffic.verify_time(work, random)
