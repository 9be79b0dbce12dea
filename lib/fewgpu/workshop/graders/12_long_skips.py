"""Grader of exercise 12. Laws: what is copied; the plain model's numbers; straight and let go; in pairs."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from fewgpu.workshop.graders import skipping
from fewgpu.workshop.graders.skip_copies import culprit, told
from fewgpu.workshop.graders.skip_guesses import FORWARD, PLACES, STRAIGHT, THROUGH, Sizes, broken
from fewgpu.workshop.graders.skipping import Case, Move
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Law, Like, Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import listed

FORBIDDEN = ('fewgpu.skip', 'fewgpu.skip_routes', 'fewgpu.balance', 'fewgpu.gpipe', 'fewgpu.pipeline',
             'fewgpu.model_parallel', 'torchgpipe')

MISCONCEPTIONS = {
    'only-x': 'the skips are left out: they have to get to their layer as well',
    'no-x': 'x is left out: what a layer gives goes to the next one as always, whatever the skips do',
    'straight-already': 'here the skips do not take the straight way: they stop at every GPU between',
    'late-on-board': 'a skip is under way from the layer that saves it on, also if that layer is the last one on its '
                     'GPU',
    'stays-on-board': 'a skip is carried on behind the layer that loads it, where nobody needs it any more',
    'early-off': 'a skip is let off one layer before the one that loads it, and that one does not get it',
    'same-gpu': 'nothing has to be copied from a GPU to the same GPU',
    'remembers': 'a skip that flows along is copied wherever x is, also to a GPU where it has been before: that one '
                 'has sent it on and let it go',
    'once-each': 'a move that comes twice is counted once (as in a set); both times something is copied',
    'still-through': 'the skips still stop at GPUs between: straight is one copy, from where they are saved to where '
                     'they are loaded',
    'turned-round': 'source and destination are the wrong way round: a skip goes from the layer that saves it to the '
                    'one that loads it',
    'layers-for-gpus': 'the two ends of a skip are numbers of layers; a move goes from GPU to GPU: placement[layer]',
    'neighbour': 'a skip goes from the GPU of the layer that saves it, not of a neighbour, and to that of the layer '
                 'that loads it',
    'twice': 'a skip is copied twice: once is enough, when it is saved or when it is loaded',
    'x-elsewhere': "x is not on the layer's GPU: a layer and what it is given have to be on one device",
    'skip-elsewhere': "the skip is not on the layer's GPU: it has come on another way than x, and has to be moved, too",
    'how-many': 'a layer that loads a skip is called with two tensors, x and the skip, and every other with x alone',
    'detached': 'a skip, or x, is cut from its graph (by detach, .data, no_grad or a new tensor): what the loss says '
                'of it does not reach the layers that made it',
    'saves-input': 'what is saved is what the layer has taken; it is what the layer gives',
    'swapped': 'a layer is called with (skip, x); the order is (x, skip), and it means another thing to the layer',
    'first-to-first': 'the skip that was saved first is loaded first; `loads` says which name goes where',
    'last-to-first': 'the skip that was saved last is loaded first: so it is in a U-Net, but here `loads` says which '
                     'name goes where, and skips may cross',
    'one-slot': 'only the last skip that was saved is remembered; several may be under way at a time',
    'x-for-skip': 'x is given twice: the skip is what an earlier layer has given',
    'weights-travel': 'the layers are moved to where the data is; they stay where they are, and the activations travel',
    'output-moved': "the output is moved in the end; it stays on the last layer's GPU",
    'over-cpu': 'a tensor is copied to the memory of the CPU and back to a GPU: two copies, over the slowest of all '
                'ways',
    'detour': 'a skip takes a detour over another GPU on its way: each detour is one more copy',
    'kept': 'skips that have been loaded are still kept: their memory is needed elsewhere',
    'all-on-one': 'all layers are on one GPU: no skip is copied, and no GPU helps',
    'down-only': 'the model is cut from the first layer to the last: the two ends of a skip are on different GPUs',
    'second-half-again': 'the second half is placed like the first, in the same order; it has to be in reverse: the '
                         'last layer belongs to the first',
    'round-robin': 'the layers are dealt out one after the other: x is copied after every layer',
    'side-by-side': 'the pairs of a GPU do not lie side by side: x is copied more often than need be',
    'unequal': 'the work is not shared out equally: the GPU with the most pairs holds up all others',
    'no-such-gpu': 'a layer is on a GPU that is not there',
}

HINTS = {
    'through': Hints(
        idea='Stand on the border between layer k and layer k + 1. Which skips have been saved by then, and are still '
             'to be loaded?',
        place='`through`: a loop over neighbours in `placement`; nothing happens where both are the same.',
        outline='for every k where placement[k] and placement[k + 1] differ:\n'
                '    x moves\n    every name with saves[name] <= k < loads[name] moves'),
    'straight': Hints(
        idea='A skip has two ends. What lies between them does not matter.',
        place='`straight`: the moves of x as before, and for each name placement[saves[name]] and '
              'placement[loads[name]].',
        outline='the moves of x: neighbours that differ\nfor each name: one move, if its two ends differ'),
    'forward': Hints(
        idea='Write it for one GPU first: a dict of skips that wait. Then: where does a layer need x, where the skip?',
        place='`forward`: in the loop, x to the device of the layer; if the layer loads, the skip too; after the '
              'layer, note the skip if it saves.',
        outline='turn saves and loads round: which name does layer k save, which does it load?\n'
                'for each layer: x.to(its device)\n    if it loads: skip.to(its device); x = layer(x, skip)\n'
                '    else: x = layer(x)\n    if it saves: keep x under the name'),
    'copies': Hints(
        idea='Where does each tensor have to be, and where does it come from? One `.to` between the two is enough.',
        place='`forward`: every `.to`. It has the device of the layer that is about to use the tensor.',
        outline='x.to(devices[k]) before layer k; skip.to(devices[k]) where layer k loads it; no other .to'),
    'let_go': Hints(
        idea='A tensor lives as long as something refers to it. What does your dict refer to after the load?',
        place='`forward`: where a skip is taken out of the dict.',
        outline='skips.pop(name) gives the skip and forgets it'),
    'place': Hints(
        idea='Fold the list of layers in the middle: what lies on each other is a pair. Share out the pairs, a few '
             'neighbours to each GPU.',
        place='`place`: the GPUs of the first half; the second half is the first in reverse.',
        outline='pairs = layers // 2\ndown = for pair 0, 1, ...: pair * gpus // pairs\ndown, then down in reverse'),
}


def _moves(answer: Any) -> Any:
    """As a sorted list of (what, from, to)."""
    answer = [tuple(listed(move)) if isinstance(move, (tuple, list)) else move for move in answer] if isinstance(
        answer, (list, tuple, set)) or hasattr(answer, '__next__') else answer
    return sorted(answer, key=str) if isinstance(answer, list) else answer


def _judge_moves(work: Work, name: str, random: Random, truth: Callable[[Case], list[Move]],
                 suspects: list[tuple[str, Callable[[Case], list[Move]]]]) -> None:
    def tell(case: Case, got: Any, wanted: list[Move]) -> str:
        told = f'{name}{case.arguments}'
        if not isinstance(got, list):
            return f'{told}\nyours     {shown(got)}\nexpected  {_text(wanted)}'
        mine, right = Counter(got), Counter(wanted)
        return f'{told}\nyours     {_text(got)}\nexpected  {_text(wanted)}' + ''.join(
            f'\n{what:<9} {_text(sorted(rest.elements(), key=str))}'
            for what, rest in (('lacks', right - mine), ('too much', mine - right)) if rest)

    judge(skipping.cases(random), lambda case: _moves(getattr(work, name)(*case.arguments)),
          lambda case: _moves(truth(case)), tell=tell, lines=work.definition(name),
          suspects=[Suspect(each, lambda case, answer=answer: _moves(answer(case))) for each, answer in suspects])


def _text(moves: list[Any]) -> str:
    return ', '.join(f'{move[0]} {move[1]}->{move[2]}' if isinstance(move, tuple) and len(move) == 3 else str(move)
                     for move in moves) or 'nothing'


@check('through: wherever the GPU changes, x is copied and all skips that are under way', points=2)
def through(work: Work, random: Random) -> None:
    _judge_moves(work, 'through', random, skipping.through, THROUGH)


@check('straight: x is copied as before, and a skip once, if its ends are on different GPUs', points=1)
def straight(work: Work, random: Random) -> dict[str, str]:
    _judge_moves(work, 'straight', random, skipping.straight, STRAIGHT)
    case = Case(tuple(k // 4 for k in range(16)), tuple((str(k), k, 15 - k) for k in range(7)))
    return {'U-Net of 16 layers on 4 GPUs, one after another': f'{len(skipping.through(case))} copies through, '
                                                               f'{len(skipping.straight(case))} straight'}


@check("forward: the plain model's output and gradients", points=3)
def forward(work: Work, random: Random) -> None:
    def answer(case: Case) -> list[Any]:
        ran = skipping.run(work, case)
        return [ran.output, ran.grads]

    def same(got: Any, wanted: Any) -> bool:
        return close(got[0], wanted[0]) and all(one is other is None or one is not None and close(one, other)
                                                for one, other in zip(got[1], wanted[1]))

    judge([*skipping.cases(random), *skipping.cases(random, equal=False)], answer, skipping.plain, same=same, suspects=[
        Suspect(misconception, lambda case, options=options: skipping.plain(case, **options))
        for misconception, options in FORWARD],
        lines=work.definition('forward'), tell=_tell_forward)


def _tell_forward(case: Case, got: Any, wanted: Any) -> str:
    if isinstance(got, BaseException):
        return str(case)
    if not close(got[0], wanted[0]):
        return f'{case}\nyours     output {shown(got[0], 50)}\nexpected  output {shown(wanted[0], 50)}'
    owners = ['x', *(k for k in range(len(case.placement)) for _ in range(3 if k in case.loads.values() else 2))]
    for owner, one, other in zip(owners, got[1], wanted[1]):
        if one is None or not close(one, other):
            what = f'gradient of {"" if owner == "x" else "layer "}{owner}'
            return f'{case}\nyours     {what}: {shown(one, 40)}\nexpected  {what}: {shown(other, 40)}'
    return str(case)


@check('forward: a skip is copied once, straight from GPU to GPU, and nothing else is copied but x', points=1,
       after=['forward'])
def copies(work: Work, random: Random) -> None:
    for case in skipping.cases(random, equal=False):
        ran = skipping.run(work, case)
        mine, right = Counter(ran.moves), skipping.wanted_moves(case)
        if ran.device != case.placement[-1] or mine - right:
            named = culprit(case, ran, mine - right)
            copied = [f'{"!" if move in mine - right else " "} {told(case, move)}' for move in ran.moves]
            raise Failure('' if named else 'More is copied than need be, or elsewhere.', misconception=named,
                          case=str(case), picture='copied, and from where to where:\n' + '\n'.join(copied),
                          lines=work.definition('forward'))


@check('forward: a skip that has been loaded is let go', points=1, after=['forward'])
def let_go(work: Work, random: Random) -> None:
    extra = [Case((0, 0, 1, 1, 0, 0, 0, 1), (('c', 2, 4), ('b', 1, 5), ('a', 0, 6))),
             Case((0, 0, 0, 0, 0, 0, 0), (('b', 1, 3), ('a', 0, 4)))]
    for case in [*extra, *skipping.cases(random)]:
        for layer, names in skipping.run(work, case, grad=False).kept:
            raise Failure(misconception='kept', lines=work.definition('forward'),
                          case=f'{case}\nloaded skips that are still there when layer {layer} computes\n'
                               f'yours     {", ".join(names)}\nexpected  one at most')


@check('place: pairs are together, the work is shared out, and x is copied as seldom as possible', points=2)
def place(work: Work, random: Random) -> dict[str, str]:
    cases = [(2, 1), (4, 2), (8, 2), (6, 2), (6, 3), (10, 3), (14, 4), (12, 5), (18, 5), (20, 3),
             *((2 * random.randrange(gpus, 5 * gpus), gpus) for gpus in (2, 3, 4, 5, 6, 7))]

    def answer(case: Sizes) -> Any:
        placement = listed(work.place(*case))
        return [int(gpu) if isinstance(gpu, float) and gpu.is_integer() else gpu for gpu in placement] if isinstance(
            placement, list) else placement

    judge(cases, answer, lambda case: Law(lambda placement: broken(case, placement)),
          suspects=[Suspect(misconception, lambda case, fits=fits: Like(fits(case))) for misconception, fits in PLACES],
          why=lambda case, got, wanted: broken(case, got), picture=_folded, lines=work.definition('place'),
          tell=lambda case, got, wanted: f'place{case}\nyours     {shown(got)}')
    mine = Case(tuple(answer((16, 4))), tuple((str(k), k, 15 - k) for k in range(7)))
    return {'U-Net of 16 layers on 4 GPUs': f'{len(skipping.straight(mine))} copies, and none of a skip'}


def _folded(case: Sizes, got: Any, wanted: Any) -> str:
    """The placement, folded in the middle."""
    if not isinstance(got, list) or len(got) != case[0]:
        return ''
    return '\n'.join(f'layer {k:>2} on GPU {got[k]}  ---- skip {"----" if got[k] == got[-1 - k] else "!!!!"}  layer '
                     f'{case[0] - 1 - k:>2} on GPU {got[-1 - k]}' for k in range(case[0] // 2))
