"""Grader of exercise 06. Laws: bare tensors cross, gradients are the plain model's in any order, nothing stays."""

import gc
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from fewgpu.ledger import Counting, Ledger
from fewgpu.workshop.graders.complaints import explained
from fewgpu.workshop.graders.plays import MakeStage, Play, compare, is_right
from fewgpu.workshop.graders.returns import check_returns
from fewgpu.workshop.graders.stage_laws import OnTheWire, check_input_is_left_alone, check_runs_once
from fewgpu.workshop.graders.stage_steps import (Log, Results, StepCase, broken, in_one_piece, near, results_of,
                                                 step_cases, wrong_step)
from fewgpu.workshop.graders.staged import TOKENS, Crowd, orders, play
from fewgpu.workshop.graders.wrong_stages import WRONG_STAGES
from fewgpu.workshop.grading.grader import Failure, Hints, InCase, check
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.bars import bars
from fewgpu.workshop.practice.rows import picture, svg

FORBIDDEN = ('fewgpu.stage', 'fewgpu.gate', 'fewgpu.run', 'fewgpu.gpipe', 'fewgpu.pipeline', 'fewgpu.loss',
             'torchgpipe')

MISCONCEPTIONS = {
    'graph-crosses': 'the output still has its graph: the next stage would go on with it, and its backward would run '
                     'through all the stages at once',
    'integers': 'integers cannot require a gradient: the first stage may get token numbers',
    'kept-without-graph': 'what is kept for the backward has no graph (it was detached, or made under no_grad), so '
                          'no backward can begin there',
    'no-leaf': 'the previous stage gets None: the gradient of the input is found only in the leaf that the graph '
               'begins with, and only if that leaf requires one',
    'gradient-ignored': 'the backward does not begin with the gradient that is handed in; without it a stage does '
                        'not know how much its output matters to the loss',
    'only-inputs': 'the gradient for the previous stage is right, and the parameters get none: this stage never learns',
    'handed-on': 'the gradient of the output is handed on as it came; the previous stage needs that of the input',
    'zero-between': 'gradients are cleared between micro-batches: only the last one counts',
    'one-slot': 'there is one place for what is kept: the next micro-batch overwrites the one before, which is still '
                'on its way',
    'others-cleared': 'what is kept of other micro-batches is thrown away with this one: they are still on their way',
    'own-order': 'the stage counts on the order in which micro-batches come and return; what belongs to one has to '
                 'be found by its number',
    'shared': 'two stages share what they keep, as it belongs to the class or to the file: each has to have its own',
    'callers-tensor': 'the tensor that was handed in is changed, and the caller may use it again: begin the graph with '
                      'x.detach()',
    'runs-twice': 'the layers run a second time: dropout draws another mask then, and batch norm counts twice',
    'never-freed': 'something of a micro-batch is still kept after its backward: memory grows with every step',
    'loss-without-graph': 'the loss has no graph: an output arrives as a bare tensor, and nobody has asked for its '
                          'gradient',
    'stage-order': 'the backward goes through the stages in the wrong order: a stage needs the gradient that the '
                   'next one returns',
    'wrong-gradient': 'a stage is handed another gradient than the one that the next stage has returned',
    'past-the-stages': 'no stage is called: a stage is used by its forward and backward alone, for it may be elsewhere',
    'one-at-a-time': "a backward comes before the last forward: this is not GPipe's order, and with one micro-batch "
                     'at a time all stages but one would be idle',
    'unscaled': 'every micro-batch counts as if it were the whole mini-batch: the gradients grow with the number of '
                'micro-batches',
    'mean-of-means': 'every micro-batch counts the same; a row of a small one then counts for more than a row of a '
                     'large one',
    'rows-not-divided': 'the losses are weighed by their rows, and not divided by the number of all rows',
    'divides-gradients': 'the gradients are divided in the end, with all that has been added up before; scale the '
                         'loss of each micro-batch',
    'cleared': 'the gradients that were there before the step are gone; a step adds to them',
    'loss-left-out': "the backward of the last stage begins with ones: it has to begin with the loss's gradient",
    'weights-changed': 'the step changes weights: it only leaves gradients, and an optimizer does the rest',
    'loss-with-graph': 'the loss is returned with its graph: whoever collects losses keeps the output of every '
                       'micro-batch; return a number (.item())',
    'wrong-loss': 'the number that is returned is not the mean loss over all rows of the mini-batch',
}

HINTS = {
    'forward': Hints(
        idea='A graph grows with every operation on a tensor that requires a gradient. Where is it to begin, and '
             'where to end?',
        place='`Stage.forward`: between the layers and the return there is one more thing to do with the output.',
        outline='x = a bare tensor of the same numbers, which from now on requires a gradient (if it is no integer)\n'
                'y = the layers on x\n'
                'keep x and y under i\n'
                'return y without its graph'),
    'backward': Hints(
        idea='The chain rule: gradient of the input = gradient of the output, through the layers. torch goes this '
             'way when a tensor that is no number gets the gradient to begin with.',
        place='`Stage.backward`: y.backward takes a gradient, and the input has to be a leaf that asks for one.',
        outline='x, y = what was kept of i\n'
                'the backward of y, which begins with the gradient that is handed in\n'
                'return the gradient that has come to x'),
    'orders_of_many': Hints(
        idea='F0 F1 F2 and then B1: what does the stage have to find, and among what?',
        place='`Stage.__init__`: a dict, from a number to what is kept of that micro-batch.',
        outline='forward: kept[i] = x, y\nbackward: take kept[i], whichever came last\nnever clear a gradient: torch '
                'adds'),
    'freed': Hints(
        idea='After its backward nobody asks for micro-batch i again. Who still holds its tensors?',
        place='`Stage.backward`: there is a method of dict that looks up and takes away.',
        outline='x, y = take kept[i] out of the dict; no retain_graph; no list of old tensors'),
    'schedule': Hints(
        idea='Draw it for two stages and two micro-batches. Who has to wait for whom on the way there, and on the '
             'way back?',
        place='`step`: two loops, one after the other, and in each of them a loop over the stages.',
        outline='for each micro-batch: through all stages, keep the last output\n'
                'for each micro-batch: its loss, the gradient of the loss at the output,\n'
                '    then back through the reversed stages, each of which is given what the next one returned'),
    'step': Hints(
        idea='Three rows, two in one micro-batch and one in the other: how much of the mean loss is in the first? '
             'Scale the loss, and the gradients come out scaled.',
        place='`step`: the loss of a micro-batch, before its backward.',
        outline='all = the number of rows of all micro-batches\n'
                'loss = loss_fn(output, target) * rows of it / all\n'
                'the backward of the loss, then that of the stages; add the loss up as a number\n'
                'return the sum'),
}


_COMPLAINTS = {'can require gradients': 'integers', 'does not require grad': 'kept-without-graph',
               'implicitly created only for scalar': 'gradient-ignored'}


def _made(work: Work) -> MakeStage:
    return lambda layer: OnTheWire(work.Stage(layer))


def _compare(work: Work, cases: Sequence[Play], kinds: str, *names: str) -> None:
    """The stage's results in these cases against the plain model's."""
    compare(work, _made(work), cases, kinds, complaints=_COMPLAINTS,
            suspects=[each for each in WRONG_STAGES if each[0] in names], lines=work.definition('Stage'))


def _single(order: str, random: Random) -> list[Play]:
    return [play(order, random), play(order, random), play(order, random, TOKENS)]


@check('the output is that of the layers, without a graph', points=2)
def forward(work: Work, random: Random) -> None:
    _compare(work, _single('F0', random), 'y')


@check('a backward returns the gradient for the previous stage, and gives the parameters theirs', points=2,
       after=['forward'])
def backward(work: Work, random: Random) -> None:
    check_returns(getattr(work.Stage, 'backward', None), work.definition('Stage'))
    _compare(work, _single('F0 B0', random), 'y gradient parameters', 'gradient-ignored', 'no-leaf', 'only-inputs',
             'handed-on')


@check('micro-batches come and return in any order, and their gradients add up', points=2, after=['backward'])
def orders_of_many(work: Work, random: Random) -> None:
    several = orders(random)
    _compare(work, several, 'y gradient parameters', 'zero-between', 'cleared', 'one-slot',
             'others-cleared', 'own-order')
    for case in several:
        try:
            alone = is_right(case, partial(Crowd, _made(work)), 'y gradient parameters')
        except Exception:
            alone = False
        if not alone:
            raise Failure(misconception='shared', case=f'three stages, of which one does this:\n{case}',
                          lines=work.definition('Stage'))
    check_input_is_left_alone(work, _made(work), random)
    check_runs_once(work, _made(work), random)


@check('after its backward nothing of a micro-batch is kept', points=1, after=['orders_of_many'])
def freed(work: Work, random: Random) -> dict[str, str]:
    case = play('F0 F1 F2 B1 B0 B2', random)
    layer, ledger, kept = case.layer(), Ledger(), []
    stage = work.Stage(layer)
    for op in case.order.split():
        i = int(op[1:])
        with Counting(ledger):
            if op[0] == 'F':
                stage.forward(i, case.inputs[i].clone())
            else:
                stage.backward(i, case.gradient(i))
        layer.zero_grad()
        kept.append(ledger.allocated)
    gc.collect()
    kept[-1] = ledger.allocated
    if kept[-1]:
        sizes = [(f'after {op}', size, f'{size} bytes kept') for op, size in zip(case.order.split(), kept)]
        raise Failure(f'{kept[-1]} bytes stay after the last backward.', misconception='never-freed',
                      case=str(case), picture=bars(sizes), lines=work.definition('Stage'))
    return {'kept after F0 F1 F2': f'{kept[2]} bytes'}


def _stepped(work: Work, case: StepCase, log: Log) -> Results:
    with explained(work, {**_COMPLAINTS, 'does not require grad': 'loss-without-graph'}):
        return results_of(work.step, case, lambda index, module: log.spied(work.Stage, index, module))


@check("all forwards come before all backwards, and each stage is given what its neighbour returned", points=1,
       after=['orders_of_many'])
def schedule(work: Work, random: Random) -> None:
    for case in step_cases(random):
        log, raised = Log(), None
        try:
            _stepped(work, case, log)
        except Exception as error:   # perhaps only a consequence
            raised = error
        name, sentence = log.fault(case)
        if not sentence and raised is not None:
            raise InCase(raised, str(case))
        name, sentence = (name, sentence) if sentence else log.missing(case)
        if name or sentence:
            rows = log.rows(case.stages)
            raise Failure(sentence, misconception=name, case=f'step with {case}', picture=picture(rows),
                          svg=svg(rows, 'yours'), lines=work.definition('step'))


@check("a step leaves the plain model's gradients and returns its loss, whatever the sizes", points=2,
       after=['schedule'])
def step(work: Work, random: Random) -> None:
    def part(rows: int, all_rows: Any) -> float:
        return rows / sum(all_rows)

    def told(case: StepCase, got: Any, wanted: Any) -> str:
        pairs = [] if isinstance(got, BaseException) else [pair for pair in zip(got, wanted) if not near(*pair)]
        shown_pair = f'\nyours     {shown(pairs[0][0])}\nexpected  {shown(pairs[0][1])}' if pairs else ''
        return f'step with {case}\nthe gradient of a parameter{shown_pair}'

    cases = step_cases(random)
    judge(cases, lambda case: _stepped(work, case, Log()).gradients, lambda case: in_one_piece(case).gradients,
          same=near, tell=told, lines=work.definition('step'), suspects=[
        Suspect('unscaled', wrong_step(share=lambda rows, all_rows: 1)),
        Suspect('mean-of-means', wrong_step(share=lambda rows, all_rows: 1 / len(all_rows))),
        Suspect('rows-not-divided', wrong_step(share=lambda rows, all_rows: rows)),
        Suspect('divides-gradients', wrong_step(share=lambda rows, all_rows: 1, after=len)),
        Suspect('divides-gradients', wrong_step(share=lambda rows, all_rows: rows, after=sum)),
        Suspect('cleared', wrong_step(share=part, clears=True)),
        Suspect('zero-between', wrong_step(share=part, clears_between=True)),
        Suspect('loss-left-out', wrong_step(share=part, ones=True))])
    for case in cases:
        name, yours, expected = broken(_stepped(work, case, Log()), in_one_piece(case))
        if name:
            raise Failure(misconception=name, lines=work.definition('step'),
                          case=f'step with {case}\nyours     {yours}\nexpected  {expected}')
