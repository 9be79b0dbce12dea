"""Grader of exercise 06. Laws: bare tensors cross, gradients are the plain model's in any order, nothing stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any


from fewgpu.ledger import Counting, Ledger
from fewgpu.workshop.graders import schedules
from fewgpu.workshop.grading.grader import Failure, Hints, InCase, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.graders.stage_steps import Log, StepCase, in_one_piece, results_of, step_cases, wrong_step
from fewgpu.workshop.graders.staged import Crowd, Order, by_the_plain_model, drive, first_difference, orders
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.graders.wrong_stages import WRONG_STAGES

FORBIDDEN = ('fewgpu.stage', 'fewgpu.gate', 'fewgpu.run', 'fewgpu.gpipe', 'fewgpu.pipeline', 'fewgpu.loss',
             'torchgpipe')

MISCONCEPTIONS = {
    'graph-crosses': 'the output still has its graph: the next stage would go on with it, and its backward would run '
                     'through all the stages at once',
    'integers': 'integers cannot require a gradient: the first stage may get token numbers',
    'kept-without-graph': 'what is kept for the backward has no graph (it was detached, or made under no_grad), so '
                          'no backward can begin there',
    'no-leaf': 'the stage before gets None: the gradient of the input is found only in the leaf that the graph '
               'begins with, and only if that leaf requires one',
    'gradient-ignored': 'the backward does not begin with the gradient that is handed in; without it a stage does '
                        'not know how much its output matters to the loss',
    'only-inputs': 'the gradient for the stage before is right, and the parameters get none: this stage never learns',
    'handed-on': 'the gradient of the output is handed on as it came; the stage before needs that of the input',
    'zero-between': 'gradients are cleared between micro-batches: only the last one counts',
    'one-slot': 'there is one place for what is kept: the next micro-batch overwrites the one before, which is still '
                'on its way',
    'own-order': 'the stage counts on the order in which micro-batches come and return; what belongs to one has to '
                 'be found by its number',
    'shared': 'two stages share what they keep, as it belongs to the class or to the file: each has to have its own',
    'never-freed': 'something of a micro-batch is still kept after its backward: memory grows with every step',
    'loss-without-graph': 'the loss has no graph: an output arrives as a bare tensor, and nobody has asked for its '
                          'gradient',
    'stage-order': 'the backward goes through the stages in the wrong order: a stage needs the gradient of the one '
                   'after it',
    'wrong-gradient': 'a stage is handed another gradient than the one that the stage after it has returned',
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
                '    then back through the reversed stages, each of which is given what the one after it returned'),
    'step': Hints(
        idea='Three rows, two in one micro-batch and one in the other: how much of the mean loss is in the first? '
             'Scale the loss, and the gradients come out scaled.',
        place='`step`: the loss of a micro-batch, before its backward.',
        outline='all = the number of rows of all micro-batches\n'
                'loss = loss_fn(output, target) * rows of it / all\n'
                'the backward of the loss, then that of the stages; add the loss up as a number\n'
                'return the sum'),
}


def _drive(work: Work, order: Order) -> list[Any]:
    """What the learner's stage does; torch's complaints that a misconception explains carry its name."""
    with _explained(work, 'kept-without-graph'):
        results = drive(work.Stage, order)
    if results[0] is None:
        raise Failure(misconception='returns-nothing', lines=work.definition('Stage'))
    return results


@contextmanager
def _explained(work: Work, without_graph: str) -> Iterator[None]:
    complaints = {'can require gradients': 'integers', 'does not require grad': without_graph,
                  'implicitly created only for scalar': 'gradient-ignored'}
    try:
        yield
    except RuntimeError as error:
        for text, misconception in complaints.items():
            if text in str(error):
                message = f'({str(error).partition(chr(10))[0]})'
                raise Failure(message, misconception=misconception, lines=work.lines(error.__traceback__)) from error
        raise


def _judge(work: Work, cases: list[Order], names: tuple[str, ...], what: slice = slice(None)) -> None:
    """The stage's results in these orders against the plain model's, or a part of them."""
    def tell(order: Order, got: Any, wanted: Any) -> str:
        if isinstance(got, BaseException):
            return f'one stage: {order}'
        name, yours, expected = first_difference(order, got, wanted, close)
        return f'one stage: {order}\n{name}\nyours     {shown(yours)}\nexpected  {shown(expected)}'

    suspects = [Suspect(name, lambda order, make=make: drive(make, order)[what])
                for name, make in WRONG_STAGES if name in names]
    judge(cases, lambda order: _drive(work, order)[what], lambda order: by_the_plain_model(order)[what], same=close,
          tell=tell, lines=work.definition('Stage'), suspects=suspects)


def _single(random: Random, *operations: str) -> list[Order]:
    return [Order(operations, random.randrange(10**6), is_integers) for is_integers in (False, False, True)]


@check('the output is that of the layers, without a graph', points=2)
def forward(work: Work, random: Random) -> None:
    _judge(work, _single(random, 'F0'), (), slice(1))


@check('a backward returns the gradient for the stage before, and gives the parameters theirs', points=2,
       after=['forward'])
def backward(work: Work, random: Random) -> None:
    _judge(work, _single(random, 'F0', 'B0'), ('gradient-ignored', 'no-leaf', 'only-inputs', 'handed-on'))


@check('micro-batches come and return in any order, and their gradients add up', points=2, after=['backward'])
def orders_of_many(work: Work, random: Random) -> None:
    several = orders(random)
    _judge(work, several, ('zero-between', 'cleared', 'one-slot', 'own-order'))
    for order in several:
        try:
            together = drive(lambda module: Crowd(work.Stage, module), order)
        except Exception as error:
            together = error
        if isinstance(together, Exception) or not close(together, by_the_plain_model(order)):
            raise Failure(misconception='shared', case=f'three stages, of which one does {order}',
                          lines=work.definition('Stage'))


@check('after its backward nothing of a micro-batch is kept', points=1, after=['orders_of_many'])
def freed(work: Work, random: Random) -> dict[str, str]:
    order = Order(('F0', 'F1', 'F2', 'B1', 'B0', 'B2'), random.randrange(10**6))
    module, ledger, kept = order.module(), Ledger(), []
    stage, rows = work.Stage(module), {}
    for at, operation in enumerate(order.operations):
        i = int(operation[1:])
        with Counting(ledger):
            if operation[0] == 'F':
                rows[i] = len(x := order.input(at, i))
                stage.forward(i, x)
            else:
                stage.backward(i, order.gradient(at, rows[i]))
        x = None
        module.zero_grad()
        kept.append(ledger.allocated)
    gc.collect()
    kept[-1] = ledger.allocated
    if kept[-1]:
        picture = '\n'.join(f'after {operation}  {bytes_:>5} bytes kept  {"#" * (bytes_ * 40 // max(kept))}'
                            for operation, bytes_ in zip(order.operations, kept))
        raise Failure(f'{kept[-1]} bytes stay after the last backward.', misconception='never-freed',
                      case=f'one stage: {order}', picture=picture, lines=work.definition('Stage'))
    return {'kept after F0 F1 F2': f'{kept[2]} bytes'}


def _stepped(work: Work, case: StepCase, log: Log) -> tuple[Any, list[Any]]:
    with _explained(work, 'loss-without-graph'):
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
        if sentence := sentence or log.missing(case):
            rows = log.rows(case.stages)
            raise Failure(sentence, misconception=name, case=f'step with {case}', picture=schedules.picture(rows),
                          svg=schedules.svg(rows, 'yours'), lines=work.definition('step'))


@check("a step leaves the plain model's gradients and returns its loss, whatever the sizes", points=2,
       after=['schedule'])
def step(work: Work, random: Random) -> None:
    def part(rows: int, all_rows: Any) -> float:
        return rows / sum(all_rows)

    def told(case: StepCase, got: Any, wanted: Any) -> str:
        pairs = [] if isinstance(got, BaseException) else [pair for pair in zip(got, wanted) if not close(*pair)]
        shown_pair = f'\nyours     {shown(pairs[0][0])}\nexpected  {shown(pairs[0][1])}' if pairs else ''
        return f'step with {case}: the gradient of a parameter{shown_pair}'

    cases = step_cases(random)
    judge(cases, lambda case: _stepped(work, case, Log())[1], lambda case: in_one_piece(case)[1], same=close, tell=told,
          lines=work.definition('step'), suspects=[
        Suspect('unscaled', wrong_step(share=lambda rows, all_rows: 1)),
        Suspect('mean-of-means', wrong_step(share=lambda rows, all_rows: 1 / len(all_rows))),
        Suspect('rows-not-divided', wrong_step(share=lambda rows, all_rows: rows)),
        Suspect('divides-gradients', wrong_step(share=lambda rows, all_rows: 1, after=len)),
        Suspect('divides-gradients', wrong_step(share=lambda rows, all_rows: rows, after=sum)),
        Suspect('cleared', wrong_step(share=part, clears=True)),
        Suspect('zero-between', wrong_step(share=part, clears_between=True)),
        Suspect('loss-left-out', wrong_step(share=part, ones=True))])
    for case in cases:
        loss, wanted = _stepped(work, case, Log())[0], in_one_piece(case)[0]
        if loss is None or not close(float(loss), wanted):
            raise Failure(misconception='returns-nothing' if loss is None else 'wrong-loss',
                          case=f'step with {case}\nyours     {shown(loss)}\nexpected  {wanted:.6f}',
                          lines=work.definition('step'))
