"""Grader of exercise 13. Laws: what a rank holds; the plain optimizer's weights; pieces only; what is on the wires."""

from dataclasses import replace
from random import Random

from fewgpu.workshop.graders import zero_layers, zero_step
from fewgpu.workshop.graders.zero_guesses import BACKWARDS, BYTES, FORWARDS, STEPS
from fewgpu.workshop.graders.zero_layers import Computed, Model
from fewgpu.workshop.graders.zero_step import NUMBER
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.collectives import Call
from fewgpu.workshop.practice.plain import number

FORBIDDEN = ('fewgpu.zero', 'fewgpu.collectives', 'fewgpu.reducer', 'fewgpu.data_parallel',
             'torch.distributed.all_reduce', 'torch.distributed.reduce_scatter', 'torch.distributed.all_gather')

MISCONCEPTIONS = {
    'no-copy': "the optimizer's own copy of the weights, in single precision, is left out: it holds 12 bytes a "
               'parameter, not 8',
    'single-precision': 'weights and gradients count as single precision; in mixed precision they take 2 bytes each, '
                        'and the optimizer 12',
    'other-order': 'something else is shared out first: it is the optimizer that holds most, then come the gradients, '
                   'and the weights, which are needed all the time, come last',
    'one-thing': 'a stage shares out one thing only; it shares out what the stages before it do as well',
    'all-shared': 'everything is shared out from stage 1 on; only stage 3 does that',
    'one-stage-off': 'the stages are one off: stage 0 shares out nothing, and stage 1 the state of the optimizer',
    'all-ranks': 'that is what all ranks hold together; it is asked what each of them holds',
    'sum': 'the gradients are added up and not averaged: they grow with the number of ranks, as if the learning rate '
           'did',
    'divides-twice': 'the gradients are divided by the number of ranks twice: the steps become smaller with every rank',
    'own-gradient': "a rank trains its piece with its own gradient: what the others' rows say of this piece is lost",
    'no-gather': 'the new pieces are not brought together: each rank has one new piece and the old rest, and the ranks '
                 'go different ways',
    'unchanged': 'the weights do not change: either the optimizer finds no `.grad`, or what it makes does not get into '
                 'the tensor that __init__ was given, in place',
    'gathers-too-early': 'the pieces are brought together before the optimizer has changed them: the weights are one '
                         'step behind',
    'rest-dropped': 'the numbers at the end that do not divide are never trained: padding takes them along',
    'fresh-state': 'there is a new optimizer in every step: it has forgotten what it knew of earlier gradients',
    'accumulates': 'the gradients of earlier steps are still in `.grad`, and the new one is added to them',
    'wrong-owner': 'a rank trains another piece than the one whose gradient it gets: rank r has piece r of both',
    'not-padded': 'a tensor is cut that does not divide by the number of ranks: it needs its padding first',
    'padding-kept': 'the padding is still there: it helps to cut, and it is no weight',
    'whole-state': 'the optimizer holds state for more than the own piece: then nothing is saved',
    'all-reduce': 'an all-reduce sends twice what is needed: a reduce-scatter brings a rank its piece of the sum, and '
                  'an all-gather brings the pieces together',
    'gathers-gradients': 'whole gradients are gathered from all ranks: the more ranks there are, the more is sent',
    'not-gathered': "a layer gets this rank's piece of the weights only: those of the others have to be gathered first",
    'not-handed-on': 'every layer gets what the first one gets: what one layer gives is what the next one takes (in '
                     'the backward it is the gradient)',
    'outputs-kept': 'the backward of a layer gets what the layer gave; it needs what it took, the input',
    'forward-order': 'the backward begins with the first layer: the gradient comes in at the last one',
    'reversed': 'the pieces come in the order of the backward, the last layer first; `pieces` begins with the first',
    'not-scattered': 'the whole gradients are returned: of each layer a rank needs its piece, and has room for no more',
    'padding-lost': "a piece of a gradient is shorter than the rank's piece of the weights: the padding belongs to it",
    'pieces-changed': 'the pieces of the weights are changed: that is for an optimizer, after the backward',
    'gathers-all': 'several layers are gathered before the first of them computes: then they are whole all at a time',
    'keeps-layers': 'a layer that has computed stays whole, because something still refers to its weights: in the end '
                    'all are there, as without ZeRO',
    'kept-for-backward': 'whole weights are kept from the forward for the backward: gather them once more; that is '
                         'what the memory costs',
    'shares-late': 'the gradients of several layers are collected before they are shared out: a rank has room for one',
    'gathers-twice': 'weights are gathered more often than they are needed: once for a forward, once for a backward',
}

HINTS = {
    'holds': Hints(
        idea='Put the 16 bytes a parameter into three boxes: weights, gradients, state. Which are divided in stage 2?',
        place='`bytes_a_rank`: start with three numbers, and divide one more of them with every stage.',
        outline='weights, gradients, state = 2, 2 and 12 bytes times parameters\n'
                'from stage 1 on: state / ranks; from stage 2 on: gradients / ranks; in stage 3: weights / ranks\n'
                'return their sum'),
    'step': Hints(
        idea='A rank that has its piece of the mean gradient can train its piece. Which call brings the one, and which '
             'call tells the others?',
        place='`Sharded`: __init__ cuts out the piece and makes the optimizer for it; `step` sets the `.grad` of the '
              'piece, steps, gathers, and writes into the weights.',
        outline='__init__: piece = padded weights, cut, the one with my number; optimizer for [piece]\n'
                "step: piece.grad = reduce-scatter of the padded gradient / N\n      the optimizer's step\n"
                '      all-gather the pieces; without padding, copy them into the weights'),
    'state': Hints(
        idea='An optimizer holds state for every number that it trains. How many numbers does a rank train?',
        place='`Sharded.__init__`: what make_optimizer is given. It is called once.',
        outline='self.optimizer = make_optimizer([the own piece])'),
    'traffic': Hints(
        idea='What does a rank need of the gradients, all or its piece? Which call brings it that, and no more?',
        place='`Sharded.step`: one reduce-scatter and one all-gather.',
        outline='reduce-scatter the gradient: (N - 1) / N\nall-gather the weights: (N - 1) / N'),
    'forward': Hints(
        idea='The output of one layer is the input of the next, as always. Only the weights come from all ranks, just '
             'before.',
        place='`forward`: a loop over layers and pieces. Note x before the layer changes it.',
        outline='for each layer and its piece:\n    note x\n    whole = all-gather the piece; cut the padding off\n'
                '    x = layer.forward(whole, x)\nreturn x and the notes'),
    'backward': Hints(
        idea='The gradient comes in at the last layer. Each layer hands on a gradient to the one before it, and leaves '
             'one of its weights, which all ranks have to average.',
        place='`backward`: a loop from the last layer to the first, with the input that the layer had in its forward.',
        outline='for each layer, its piece and its input, from the last to the first:\n'
                '    whole = all-gather the piece, without padding\n'
                '    gradient, own = layer.backward(whole, its input, gradient)\n'
                '    reduce-scatter the padded own, / N: put it in front of the others'),
    'one_whole': Hints(
        idea='A tensor lives as long as a name, a list or another tensor (of which it is a part) refers to it. Who '
             'refers to the weights of the layer before?',
        place='`forward` and `backward`: gather inside of the loop, and put no weights into a list.',
        outline='in the loop, one name for the whole weights: the next turn replaces them\n'
                'keep the inputs only\nreduce-scatter in the loop, too'),
    'layers_traffic': Hints(
        idea='Every layer is gathered for its forward, and once more for its backward; its gradient is scattered. '
             'That makes three.',
        place='`forward`: one all-gather a layer. `backward`: one all-gather and one reduce-scatter a layer.',
        outline='count the calls on a rank: layers in the forward, 2 times layers in the backward; no all-reduce'),
}


@check('what a rank holds is counted, whole or shared out', points=2)
def holds(work: Work, random: Random) -> None:
    cases = [(0, 100, 1), (0, 100, 4), *((stage, 100, 4) for stage in (1, 2, 3)), (2, 7, 2),
             *((random.randrange(4), random.randrange(1, 1000), random.randrange(1, 65)) for _ in range(12))]

    def truth(stage: int, parameters: int, ranks: int) -> float:
        return float(parameters * (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)[stage])

    judge(cases, lambda case: number(work.bytes_a_rank(*case)), lambda case: truth(*case), same=close, suspects=[
        Suspect(misconception, lambda case, answer=answer: float(answer(truth, *case)))
        for misconception, answer in BYTES], lines=work.definition('bytes_a_rank'),
        tell=lambda case, got, wanted: f'bytes_a_rank{case}\nyours     {shown(got)}\nexpected  {wanted:g}')


@check('every rank has the weights that the plain optimizer would make of the mean gradient', points=2)
def step(work: Work, random: Random) -> None:
    for method in ('__init__', 'step'):
        code = getattr(getattr(work.Sharded, method, None), '__code__', None)
        if code and not code.co_names:
            raise Failure(f'(`{method}`.)', misconception='unsolved', lines=work.definition(f'Sharded.{method}'))
    judge(zero_step.cases(random), lambda case: zero_step.run(work, case)[0].results, zero_step.plain, same=close,
          suspects=[Suspect(misconception, answer) for misconception, answer in STEPS],
          lines=work.definition('Sharded.step'), tell=zero_step.tell)


@check('the optimizer of a rank holds state for its own piece only', points=1, after=['step'])
def state(work: Work, random: Random) -> dict[str, str]:
    sizes = [(2, 4), (3, 5), (random.randrange(3, 6), random.randrange(6, 40))]
    for case in [zero_step.case(random, *size, 2, optimizer) for size in sizes
                 for optimizer in ('SGD with momentum', 'Adam')]:
        allowed = case.piece * (2 if case.optimizer == 'Adam' else 1)
        for rank, made in enumerate(zero_step.run(work, case)[1]):
            if made.state() > allowed:
                raise Failure(misconception='whole-state', lines=work.definition('Sharded.__init__'),
                              case=f'{case}\nnumbers of state on rank {rank}\n'
                                   f'yours     {made.state()}\nexpected  {allowed}')
    return {'state': f'{allowed} numbers a rank; without ZeRO {case.numbers * 2}'}


@check('a step sends what an all-reduce would, and no more', points=1, after=['step'])
def traffic(work: Work, random: Random) -> dict[str, str]:
    for ranks, numbers in [(2, 4), (4, 8), (3, 5), (1, 3), (random.randrange(4, 7), random.randrange(6, 40))]:
        case = zero_step.case(random, ranks, numbers, 3, 'SGD')
        first = zero_step.run(work, replace(case, gradients=case.gradients[:1]))[0]
        all_steps = zero_step.run(work, case)[0]
        allowed, calls = 2 * (ranks - 1) * case.piece * NUMBER, all_steps.calls[0][-len(all_steps.calls[0]) // 3:]
        sent = max((after - before) // 2 for before, after in zip(first.bytes_sent, all_steps.bytes_sent))
        if sent > allowed:
            raise Failure(misconception=_too_much(calls, case.piece * ranks), lines=work.definition('Sharded.step'),
                          case=f'{case}\nbytes that a rank sends in a step\nyours     {sent}\nexpected  {allowed}',
                          picture='\n'.join(map(str, calls)))
    return {f'sent by each of {ranks} ranks': f'{sent} bytes, for {case.piece * ranks * NUMBER} bytes of weights'}


def _too_much(calls: list[Call], numbers: int) -> str:
    """The misconception behind calls that send too much; '' if it is no known one."""
    if any(call.kind == 'all-reduce' for call in calls):
        return 'all-reduce'
    return 'gathers-gradients' if any(call.numbers > numbers for call in calls) else ''


@check("`forward` gives the plain model's output, with weights from all ranks", points=1)
def forward(work: Work, random: Random) -> None:
    zero_layers.check_padding(work, backward=False)
    judge(zero_layers.models(random),
          lambda model: [left.output for left in zero_layers.run(work, model, backward=False).results], Model.outputs,
          same=close, suspects=[Suspect(misconception, answer) for misconception, answer in FORWARDS],
          lines=work.definition('forward'), tell=zero_layers.tell)


@check("`backward` gives every rank its pieces of the plain model's mean gradients", points=1, after=['forward'])
def backward(work: Work, random: Random) -> None:
    zero_layers.check_padding(work, backward=True)
    judge(zero_layers.models(random), lambda model: [left.shared for left in zero_layers.run(work, model).results],
          zero_layers.mean_pieces, same=close,
          suspects=[Suspect(misconception, answer) for misconception, answer in BACKWARDS],
          lines=work.definition('backward'), tell=zero_layers.tell)


@check('when a layer computes, no other layer is whole', points=1, after=['backward'])
def one_whole(work: Work, random: Random) -> dict[str, str]:
    for model in [Model(2, (2, 2, 2)), Model(3, (2, 3, 1, 2, 2)), Model(2, (2,) * random.randrange(5, 8))]:
        left = zero_layers.run(work, model).results[0]
        for what, named in (('forward', ''), ('backward', 'kept-for-backward' if left.alive else '')):
            computed = [each for each in left.watch.computed if each.what == what]
            if guilty := [each for each in computed if each.others]:
                _too_many(work, model, what, guilty[0], named or ('gathers-all' if guilty == computed[:len(guilty)]
                          and computed[0].others else 'keeps-layers'), left.watch.computed)
        if left.alive:
            raise Failure(misconception='kept-for-backward', lines=work.definition('forward'),
                          case=f'{model}\nwhole weights after `forward`\nyours     {left.alive}\nexpected  0')
        first = [each.reduced for each in left.watch.computed if each.what == 'backward']
        shares = any(call.kind != 'all-gather' for call in left.watch.rank.calls)
        if shares and (late := [turn for turn, reduced in enumerate(first) if reduced < turn - 1]):
            raise Failure(misconception='shares-late', lines=work.definition('backward'),
                          case=f'{model}\ngradients shared out when backward {late[0]} (counted from 0) begins\n'
                               f'yours     {first[late[0]]}\nexpected  at least {late[0] - 1}')
    largest, total = (function(layer.numbers for layer in model.layers) * NUMBER for function in (max, sum))
    return {'whole at a time': f'{largest} bytes of weights of {total}'}


def _too_many(work: Work, model: Model, what: str, first: Computed, named: str, computed: list[Computed]) -> None:
    raise Failure(misconception=named, lines=work.definition('forward' if named == 'kept-for-backward' else what),
                  case=f'{model}\nwhole weights on rank 0 when layer {first.layer} computes its {what}\n'
                       f'yours     its own, and {first.others} more\nexpected  its own',
                  picture='whole on rank 0:\n' + '\n'.join(
                      f'{each.what:<8} of layer {each.layer}  {"#" * (1 + each.others)}' for each in computed))


@check('a layer is gathered twice and its gradient scattered once: half as much again as an all-reduce sends',
       points=1, after=['backward'])
def layers_traffic(work: Work, random: Random) -> dict[str, str]:
    for model in [Model(2, (2, 2, 2)), Model(3, (2, 3, 1)), Model(random.randrange(2, 5), (3, 4, 2, 5))]:
        alone, both = (zero_layers.run(work, model, backward=each) for each in (False, True))
        one = (model.ranks - 1) * sum(model.piece(layer) for layer in range(len(model.layers))) * NUMBER
        for name, sent, allowed, calls in [
                ('forward', alone.bytes_sent[0], one, alone.calls[0]),
                ('backward', both.bytes_sent[0] - alone.bytes_sent[0], 2 * one, both.calls[0][len(alone.calls[0]):])]:
            if sent > allowed:
                largest = max(model.piece(layer) for layer in range(len(model.layers))) * model.ranks
                raise Failure(misconception=_too_much(calls, largest) or 'gathers-twice', lines=work.definition(name),
                              case=f'{model}\nbytes that rank 0 sends in `{name}`\n'
                                   f'yours     {sent}\nexpected  {allowed}', picture='\n'.join(map(str, calls)))
    return {'sent by each rank': f'{3 * one} bytes; without ZeRO {2 * one}'}
