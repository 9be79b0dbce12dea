"""Grader of exercise 07. Laws: the plain layer's results; between the two the input alone is kept; no trace is left."""

from collections.abc import Sequence
from random import Random

import torch

from fewgpu.workshop.graders.alive import alive_between_and_after
from fewgpu.workshop.graders.mistaken import mistaken
from fewgpu.workshop.graders.plays import Plain, Play, compare
from fewgpu.workshop.graders.recomputed import MESSAGES, learners
from fewgpu.workshop.graders.returns import check_returns
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.bars import bars

FORBIDDEN = ('torch.utils.checkpoint', 'torch.utils.checkpoint.CheckpointFunction.apply', 'fewgpu.recompute',
             'fewgpu.stage', 'fewgpu.gpipe', 'fewgpu.pipeline', 'torchgpipe.checkpoint', 'torchgpipe.gpipe')

MISCONCEPTIONS = {
    'graph-kept': 'the first forward keeps its graph, and with it every activation: no memory is saved',
    'inference-mode': 'what torch.inference_mode makes can never be part of a graph, so the next layer cannot be '
                      'differentiated: use torch.no_grad',
    'grad-mode': 'the grad mode is another one afterwards: whatever comes next runs without a graph, or with one that '
                 'nobody wanted; `with torch.no_grad():` puts it back',
    'eval-forward': 'the first forward runs in eval mode: no_grad drops the graph, but eval means no dropout and '
                    'another batch norm',
    'own-seed': 'forward does not draw what layer(x) would draw, or does not leave the generator where layer(x) would: '
                'with a seed of its own, every micro-batch gets the same masks',
    'keeps-output': 'the output is kept as well: it is the input of the next layer, which keeps it if it has to',
    'keeps-more': 'more is kept than the input, so less memory is saved than could be',
    'leaves-behind': 'something stays alive after the backward: memory grows from step to step',
    'recompute-without-graph': 'what the backward starts from has no graph: the second forward has to build one, '
                               'outside of torch.no_grad',
    'input-forgotten': 'no gradient comes out for x, so the previous stage learns nothing: the x of the second forward '
                       'has to require one',
    'parameters-forgotten': 'the gradient for x is right, but the parameters get none: they never learn',
    'gradient-ignored': 'the backward starts from ones instead of the gradient that it is given',
    'gradient-passed-on': 'the gradient for y is returned as that for x: it has to go through the layer',
    'not-accumulated': 'the gradients of the parameters are overwritten instead of added up: only the last micro-batch '
                       'counts',
    'one-slot': 'there is one place for what is kept, and the next forward overwrites it: every micro-batch needs its '
                'own',
    'frozen': 'a gradient is asked for a frozen parameter, and torch refuses',
    'frozen-graded': 'a frozen parameter gets a gradient: it is not trained, its .grad stays None for ever',
    'rounded': 'the input is kept in a smaller dtype: the second forward runs on other numbers than the first',
    'other-masks': 'the second forward does not draw the random numbers of the first: its dropout has other masks than '
                   'the output that was used',
    'state-too-late': "the state of the generator is taken after the forward: the second forward gets the numbers that "
                      "come after the first one's",
    'eval-recompute': 'the second forward runs in eval mode: without dropout, with another batch norm than the first',
    'stream-disturbed': 'backward leaves the generator elsewhere than it found it: what is drawn next depends on the '
                        'recompute, and may be the numbers of another micro-batch again',
    'counted-twice': "batch norm's running statistics are updated again in the second forward: each micro-batch counts "
                     'twice',
    'batches-counted-twice': 'the running mean is right, but the second forward has increased num_batches_tracked, too',
    'counted-late': 'batch norm counts a micro-batch in its backward instead of in its forward: in another order, and '
                    'not at all where there is no backward',
    'buffers-turned-back': 'backward leaves the buffers as they were at the forward of this micro-batch: what has been '
                           'counted since is lost',
    'other-buffers': 'batch norm is right, but a layer of another kind has counted twice: any layer may have buffers',
    'modes-changed': 'backward leaves a layer in another mode (training or eval) than it found it: a batch norm that '
                     'was frozen in eval mode is not any more',
    'buffers-too-early': 'the buffers are put back between the second forward and its backward, which still needs them',
    'input-overwritten': 'the layer has written over the input that was kept, and runs again on something else',
    'leaf-in-place': 'autograd lets nobody write over a leaf that requires a gradient: give the layer a clone of it',
    'whole-numbers': 'integers have no gradient: x must not require one then, and None is returned',
}

HINTS = {
    'output': Hints(
        idea='There is a mode in which torch remembers nothing, and it changes neither numbers nor dropout.',
        place='`forward`: the call of the layer, and what you return beside y.',
        outline='keep x (and what else backward needs)\nwithout a graph: y = layer of x\nreturn y, and what is kept'),
    'gradients': Hints(
        idea='A tensor that requires a gradient, a forward, a backward: as in any training step, but with one layer.',
        place='`backward`: take x, let it require a gradient, run the layer with a graph, start from `gradient`.',
        outline='leaf = x without history, requiring a gradient\ny = layer of leaf\n'
                'go backward from y, with the gradient that was given\nreturn the gradient of leaf'),
    'memory': Hints(
        idea='What refers to a tensor keeps it alive; a tensor with a graph keeps all of the graph alive.',
        place='`forward`: what is in `kept`; `backward`: whatever you store outside of local names.',
        outline='kept is x and the state of the generator, and nothing else\n'
                'no list or dictionary outlives the two calls'),
    'masks': Hints(
        idea='Random numbers come from a generator: from the same state come the same numbers.',
        place='`forward`: note the state before the layer draws. `backward`: set it before the layer draws again.',
        outline='forward: take the state, first of all\nbackward: set that state, then run the layer'),
    'stream': Hints(
        idea='Who borrows something gives it back as it was.',
        place='`backward`: before and after the second forward.',
        outline='remember the state that you find\nset the old one, run the layer\nset the one that you found'),
    'batch_norm': Hints(
        idea='In training a batch norm does two things: it normalises, and it counts. The second time one is too much.',
        place='`backward`: layer.buffers(), before the second forward and after its backward.',
        outline='clone every buffer\nsecond forward, and its backward\ncopy the clones back into the buffers'),
    'in_place': Hints(
        idea='A layer that works in place writes over whatever you hand to it. What may it write over?',
        place='Both calls of the layer, in `forward` and in `backward`.',
        outline='call the layer on a clone of x, both times (in backward the clone is part of the graph,\n'
                'and the gradient arrives at the leaf from which it was cloned)'),
    'numbers': Hints(
        idea='What would the derivative by the number of a token be?',
        place='`backward`: where x is made to require a gradient, and what is returned.',
        outline='require a gradient only if x is of floating point\n'
                'the .grad of a tensor that never required one is None: return that'),
}

_DOUBLE = 'nn.Linear(1, 1, bias=False)'
_DEEP = 'nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))'
_DROPOUTS = 'nn.Dropout(0.5)', 'nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 6), nn.Dropout(0.5))'
_NORM = 'nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())'
_COUNTER = 'nn.Sequential(nn.Linear(3, 4), RowsSeen(), nn.Tanh())'
_IN_PLACE = 'nn.SiLU(inplace=True)', 'nn.Sequential(nn.SiLU(inplace=True), nn.Linear(3, 2))'
_EMBEDDING = 'nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 2))'
_LARGE = 'nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32))'


def agree(work: Work, cases: Sequence[Play], kinds: str, mistakes: Sequence[str], *, where: str = 'backward',
          otherwise: str = '', **complaints: str) -> None:
    """Does the learner's pair do in all cases what the plain layer does? `otherwise`: what it is called if not."""
    known = {**MESSAGES, **{message.replace('_', ' '): name for message, name in complaints.items()}}
    try:
        compare(work, learners(work), cases, kinds, complaints=known, lines=work.definition(where),
                suspects=[(mistake.partition(',')[0], mistaken(mistake)) for mistake in mistakes])
    except Failure as failure:
        failure.misconception = failure.misconception or otherwise
        raise


def rows(random: Random, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(random.randrange(10**6)))


def orders(code: str, random: Random, *shape: int) -> list[Play]:
    """One micro-batch, and two of them in all orders."""
    inputs = rows(random, *shape), rows(random, *shape)
    return [Play(code, inputs[:1], seed=1), *(Play(code, inputs, order, seed=random.randrange(10**6))
                                              for order in ('F0 B0 F1 B1', 'F0 F1 B1 B0', 'F0 F1 B0 B1'))]


@check("y has the layer's numbers, and no graph", points=1)
def output(work: Work, random: Random) -> None:
    check_returns(work.forward, work.definition('forward'))
    x, three = rows(random, 4, 3), torch.tensor([[3.0]], dtype=torch.float64)
    agree(work, [Play(_DOUBLE, (three,), 'F0'), Play(_DEEP, (x,), 'F0')], 'y', ['eval-forward'], where='forward')
    y = learners(work)(Play(_DEEP, (x,)).layer()).forward(0, x)
    call = f'layer = {_DEEP}\ny, kept = forward(layer, x)'
    if y.grad_fn is not None:
        raise Failure(misconception='graph-kept', lines=work.definition('forward'),
                      case=f'{call}\ny.grad_fn\nyours     {y.grad_fn.name()}\nexpected  None')
    if y.is_inference():
        raise Failure(misconception='inference-mode', case=f'{call}\ny.is_inference()\nyours     True\nexpected  False',
                      lines=work.definition('forward'))
    inputs = rows(random, 1, 8), rows(random, 1, 8)
    draws = [Play(code, inputs, order) for code in _DROPOUTS for order in ('F0', 'F0 F1')]
    agree(work, draws, 'y numbers', ['eval-forward'], where='forward', otherwise='own-seed')


@check("gradients are the plain layer's, and those of micro-batches add up", points=2, after=['output'])
def gradients(work: Work, random: Random) -> None:
    check_returns(work.backward, work.definition('backward'))
    three, images = torch.tensor([[3.0]], dtype=torch.float64), (rows(random, 2, 3, 2), rows(random, 5, 3, 2))
    cases = [Play(_DOUBLE, (three,)), *orders(_DEEP, random, 4, 3), Play('nn.Tanh()', (rows(random, 2, 3),)),
             Play(_DEEP, (rows(random, 4, 3),), frozen='0'),
             Play('nn.Sequential(nn.Flatten(), nn.Linear(6, 1))', images, 'F0 F1 B0 B1')]
    agree(work, cases, 'gradient parameters', [
        'input-forgotten', 'input-forgotten, no leaf', 'gradient-passed-on', 'gradient-ignored',
        'gradient-ignored, mean', 'parameters-forgotten', 'not-accumulated', 'one-slot', 'frozen-graded',
        'frozen-graded, zeros', 'rounded', 'rounded, single'])


@check('from forward to backward the bytes of the input are kept, and after it nothing', points=2, after=['gradients'])
def memory(work: Work, random: Random) -> dict[str, str]:
    small = 2 * 5056   # bytes: two states of the generator (the layer has no buffers)
    x, gradient = rows(random, 512, 16), rows(random, 512, 32)
    layer = Play(_LARGE, (x,)).layer()
    call = 'layer: three nn.Linear and two nn.Tanh; x: 512 rows of 16\ny, kept = forward(layer, x)'
    graph, _ = alive_between_and_after(Plain, layer, x.clone(), gradient)
    kept, left = alive_between_and_after(learners(work), layer, x.clone(), gradient)
    if kept > x.nbytes + small:
        keeps_output = abs(kept - x.nbytes - gradient.nbytes) <= small
        name = 'graph-kept' if kept > graph - small else 'keeps-output' if keeps_output else 'keeps-more'
        sizes = {'the input': x.nbytes, 'yours': kept, 'a graph': graph}
        raise Failure(misconception=name, lines=work.definition('forward'),
                      case=f'{call}\nkept until backward\nyours     {kept:,} bytes\nexpected  {x.nbytes:,} bytes: x',
                      picture=bars((name, size, f'{size:,} bytes') for name, size in sizes.items()))
    if left > small:
        raise Failure(misconception='leaves-behind', lines=work.definition('backward'),
                      case=f'{call}\nbackward(layer, kept, gradient)\nalive afterwards\nyours     {left:,} bytes\n'
                           f'expected  0 bytes')
    return {'a graph keeps': f'{graph:,} bytes', 'you keep': f'{kept:,} bytes'}


@check('the second forward has the same dropout masks', points=1, after=['gradients'])
def masks(work: Work, random: Random) -> None:
    cases = [case for code in _DROPOUTS for case in orders(code, random, 2, 8) if not case.order.endswith('F1 B1')]
    mistakes = [mistake + way for way in ('', ', stream left') for mistake in ('state-too-late', 'eval-recompute')]
    agree(work, cases, 'gradient parameters', mistakes, otherwise='other-masks')


@check("backward leaves the caller's random numbers alone", points=1, after=['masks'])
def stream(work: Work, random: Random) -> None:
    agree(work, [case for code in _DROPOUTS for case in orders(code, random, 2, 8)], 'numbers', [],
            otherwise='stream-disturbed')


@check('batch norm counts every micro-batch once, when it goes forward', points=1, after=['gradients'])
def batch_norm(work: Work, random: Random) -> None:
    agree(work, orders(_NORM, random, 5, 3), 'y buffers gradient parameters',
            ['counted-twice', 'batches-counted-twice', 'counted-late', 'buffers-turned-back',
             'buffers-turned-back, before', 'eval-recompute', 'eval-forward'],
            modified_by_an_inplace_operation='buffers-too-early')
    agree(work, orders(_COUNTER, random, 5, 3), 'buffers', [], otherwise='other-buffers')
    layer = Play(_NORM, ()).layer()
    layer[1].eval()
    stage = learners(work)(layer)
    stage.forward(0, rows(random, 5, 3))
    stage.backward(0, rows(random, 5, 4))
    for name, part in layer.named_modules():
        if part.training != (name != '1'):
            raise Failure(misconception='modes-changed', lines=work.definition('backward'),
                          case=f'layer = {_NORM}\nlayer[1].eval(); forward, backward\n'
                               f'layer{f"[{name}]" if name else ""}.training\n'
                               f'yours     {part.training}\nexpected  {name != "1"}')


@check('a layer may write over its input', points=1, after=['gradients'])
def in_place(work: Work, random: Random) -> None:
    agree(work, [case for code in _IN_PLACE for case in orders(code, random, 2, 3)], 'y gradient parameters',
            ['input-overwritten'], where='forward')


@check('the first layer may take integers', points=1, after=['gradients'])
def numbers(work: Work, random: Random) -> None:
    tokens = tuple(torch.tensor([[random.randrange(5) for _ in range(3)]]) for _ in range(2))
    agree(work, [Play(_EMBEDDING, tokens[:1]), Play(_EMBEDDING, tokens, 'F0 F1 B0 B1')], 'y gradient parameters', [],
            otherwise='whole-numbers', One_of_the_differentiated_Tensors='whole-numbers')
