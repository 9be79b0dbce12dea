"""What misconceptions about long skips would answer, for exercise 12; and what is wrong with a placement."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from fewgpu.workshop.graders.skipping import Case, Move, straight, through

Sizes = tuple[int, int]   # layers, GPUs


def under_way(first: int, last: int, x: bool = True) -> Callable[[Case], list[Move]]:
    """As `through`, but a skip is under way from `first` layers after its save on, to `last` layers after its load."""
    def answer(case: Case) -> list[Move]:
        return [(what, here, there) for k, (here, there) in enumerate(pairwise(case.placement)) if here != there
                for what in [*['x'] * x, *(name for name, saver, loader in case.skips
                                           if saver + first <= k < loader + last)]]
    return answer


def everywhere(case: Case) -> list[Move]:
    """As `through`, and where the GPU stays the same as well."""
    return [(what, here, there) for k, (here, there) in enumerate(pairwise(case.placement))
            for what in ['x', *(name for name, saver, loader in case.skips if saver <= k < loader)]]


def once_to_each(case: Case) -> list[Move]:
    """As `through`, but a GPU on which a skip has been already is not sent it again."""
    been = {name: {case.placement[saver]} for name, saver, _ in case.skips}
    answer = []
    for what, here, there in through(case):
        if what == 'x' or there not in been[what]:
            answer.append((what, here, there))
            been.setdefault(what, set()).add(there)
    return answer


def only(x: bool, moves: Callable[[Case], list[Move]]) -> Callable[[Case], list[Move]]:
    """Those of x, or those of the skips."""
    return lambda case: [move for move in moves(case) if (move[0] == 'x') == x]


def ends(saver_plus: int = 0, loader_plus: int = 0, same: bool = False, turned: bool = False,
         x: bool = True) -> Callable[[Case], list[Move]]:
    """As `straight`, from other layers' GPUs, also on the `same` GPU, or in the wrong direction."""
    def answer(case: Case) -> list[Move]:
        moves = [(name, case.placement[saver + saver_plus], case.placement[loader + loader_plus])
                 for name, saver, loader in case.skips]
        moves = [(what, there, here) if turned else (what, here, there) for what, here, there in moves
                 if same or here != there]
        return moves + (everywhere_x(case) if same and x else [move for move in through(case) if move[0] == 'x'])
    return answer


def everywhere_x(case: Case) -> list[Move]:
    return [('x', here, there) for here, there in pairwise(case.placement)]


def of_layers(case: Case) -> list[Move]:
    """As `straight`, with the numbers of layers in place of those of their GPUs."""
    return [move for move in straight(case) if move[0] == 'x'] + list(case.skips)


def twice(case: Case) -> list[Move]:
    return straight(case) + [move for move in straight(case) if move[0] != 'x']


THROUGH: list[tuple[str, Callable[[Case], list[Move]]]] = [
    ('only-x', only(True, through)),
    ('no-x', only(False, through)),
    ('straight-already', straight),
    ('late-on-board', under_way(1, 0)),
    ('stays-on-board', under_way(0, 1)),
    ('early-off', under_way(0, -1)),
    ('same-gpu', everywhere),
    ('remembers', once_to_each),
    ('once-each', lambda case: list(set(through(case)))),
]

STRAIGHT: list[tuple[str, Callable[[Case], list[Move]]]] = [
    ('still-through', through),
    ('still-through', once_to_each),
    ('only-x', only(True, straight)),
    ('no-x', only(False, straight)),
    ('same-gpu', ends(same=True)),
    ('same-gpu', lambda case: only(True, straight)(case) + only(False, ends(same=True))(case)),
    ('turned-round', ends(turned=True)),
    ('layers-for-gpus', of_layers),
    ('neighbour', ends(saver_plus=1)),
    ('neighbour', ends(loader_plus=-1)),
    ('neighbour', ends(saver_plus=1, loader_plus=-1)),
    ('twice', twice),
    ('once-each', lambda case: list(set(straight(case)))),
]

FORWARD: list[tuple[str, dict[str, Any]]] = [
    ('detached', {'detached': True}),
    ('detached', {'x_detached': True}),
    ('saves-input', {'of_input': True}),
    ('swapped', {'swapped': True}),
    ('x-for-skip', {'own': True}),
    ('last-to-first', {'take': lambda waiting: waiting.pop()}),
    ('first-to-first', {'take': lambda waiting: waiting.pop(0)}),
    ('one-slot', {'take': lambda waiting: waiting[-1]}),
]
"""Options of `skipping.plain`."""


def broken(sizes: Sizes, placement: Any) -> str:
    """What is wrong with the placement of a U-Net, in a sentence; '' if nothing is."""
    layers, gpus = sizes
    if not isinstance(placement, list) or any(not isinstance(gpu, int) for gpu in placement):
        return 'The answer is no list of numbers, one for each layer.'
    if len(placement) != layers:
        return f'There are {len(placement)} numbers for {layers} layers.'
    if strange := [gpu for gpu in placement if not 0 <= gpu < gpus]:
        return f'There is no GPU {strange[0]}: they are 0 to {gpus - 1}.'
    for layer in range(layers // 2):
        if placement[layer] != placement[layers - 1 - layer]:
            return (f'Layer {layer} is on GPU {placement[layer]} and its mirror image, layer {layers - 1 - layer}, on '
                    f'GPU {placement[layers - 1 - layer]}: their skip has to be copied.')
    pairs = [placement[:layers // 2].count(gpu) for gpu in range(gpus)]
    if max(pairs) - min(pairs) > 1:
        return (f'GPU {pairs.index(max(pairs))} has {max(pairs)} pairs of layers, and GPU {pairs.index(min(pairs))} '
                f'has {min(pairs)}.')
    copies = sum(here != there for here, there in pairwise(placement))
    return f'x is copied {copies} times; {2 * gpus - 2} are enough.' if copies > 2 * gpus - 2 else ''


def _parts(layers: int, gpus: int) -> list[int]:
    return [k * gpus // layers for k in range(layers)]


def looks_like(fits: Callable[[list[int], int, int], bool]) -> Callable[[Sizes], Callable[[Any], bool]]:
    """For `Like`: a placement that is a list of numbers, and fits."""
    return lambda sizes: lambda placement: (len(placement) == sizes[0] and set(map(type, placement)) == {int}
                                            and bool(fits(list(placement), *sizes)))


def _is_mirrored(placement: list[int]) -> bool:
    return placement == placement[::-1]


def _alternates(placement: list[int], layers: int, gpus: int) -> bool:
    half = placement[:layers // 2]
    return sum(here != there for here, there in pairwise(half)) > gpus - 1 or gpus == 1


PLACES: list[tuple[str, Callable[[Sizes], Callable[[Any], bool]]]] = [
    ('no-such-gpu', looks_like(lambda placement, layers, gpus: any(not 0 <= gpu < gpus for gpu in placement))),
    ('all-on-one', looks_like(lambda placement, layers, gpus: len(set(placement)) == 1)),
    ('down-only', looks_like(lambda placement, layers, gpus: not _is_mirrored(placement)
                             and placement == sorted(placement) or gpus == 1)),
    ('second-half-again', looks_like(lambda placement, layers, gpus:
                                     placement[layers // 2:] == placement[:layers // 2])),
    ('round-robin', looks_like(lambda placement, layers, gpus: placement == [k % gpus for k in range(layers)])),
    ('side-by-side', looks_like(lambda placement, layers, gpus: _is_mirrored(placement)
                                and _alternates(placement, layers, gpus) or gpus >= layers // 2)),
    ('unequal', looks_like(lambda placement, layers, gpus: _is_mirrored(placement)
                           and sum(map(int.__ne__, placement, placement[1:])) <= 2 * gpus - 2)),
]
"""Tried in this order; each also fits the answers to sizes at which its mistake does not show."""
