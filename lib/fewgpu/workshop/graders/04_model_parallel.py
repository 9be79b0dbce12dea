"""Grader of exercise 04. Laws: a place for every layer, the plain model's numbers, only activations travel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.graders.placed import GPUS, Case, cases, crossings, drawn, expected, found, is_detour
from fewgpu.workshop.graders.placed_training import STEPS, Loss, plain_step, train
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.graders.wrong_places import WRONG_PLACES
from fewgpu.workshop.practice.gpus import Move, PretendGpus, pretend_gpus

FORBIDDEN = ('fewgpu.model_parallel', 'fewgpu.gpipe', 'fewgpu.pipeline', 'fewgpu.partition', 'torchgpipe')

MISCONCEPTIONS = {
    'all-on-one': 'all stages are on one device: the model needs as much of its memory as before',
    'not-moved': 'the stages are cut and stay where the model was: nothing has been moved to a GPU',
    'own-numbers': 'stage j is put on cuda:j, whatever `devices` says: only those who have all GPUs in this order '
                   'may do that',
    'one-off': 'the cut is one layer off: a layer is lost, or is in two stages',
    'boundaries': 'the balance is taken for the places of the cuts; it says how many layers each stage has',
    'from-start': 'every stage begins at layer 0, where it should begin where the stage before it has ended',
    'equal-stages': 'the model is cut into equal stages, whatever `balance` says',
    'copies': 'the stages are copies of the layers, or have new parameters: the optimizer trains the originals, and '
              'the copies never change',
    'buffers-left': "the parameters are moved and the buffers are left behind: batch norm's running mean is one",
    'activation-stays': 'a tensor meets weights on another device: the activation has to be moved to the device of '
                        'the stage before the stage runs',
    'weights-travel': 'the weights are moved to where the data is, in every forward; they are large and stay where '
                      'they are, and the activations travel',
    'output-home': "the output is brought back; it stays on the last stage's device, where the loss is computed",
    'detour': 'an activation takes a detour over another device on its way to the next stage: each detour is a copy '
              'more',
    'detached': 'an activation is cut from its graph (by detach, .data, no_grad or a new tensor): no gradient '
                'reaches the stages before, so they never learn',
    'target-stays': 'the target is left where it was, and the output is on another device',
    'loss-at-home': "the loss is computed somewhere else: it belongs on the last stage's device, where the output is",
    'gradients-kept': 'the gradients of the step before are still there, and are added to',
    'nothing-learned': 'no weight has changed: the step of the optimizer, or the gradient that it needs, is missing',
}

HINTS = {
    'place': Hints(
        idea='Write the layers 0 to 4 in a row and cut them by hand for the balance [2, 3]. Where does stage 1 '
             'begin? Which two numbers do you have to know for every stage?',
        place='`place`: a loop over balance and devices together, which keeps the number of the next layer. A slice '
              'of an nn.Sequential is an nn.Sequential of the same layers, and a module moves with all that it has '
              'by one call.',
        outline='start = 0\n'
                'for each number of layers and device:\n'
                '    take the layers from start on, move them to the device, append\n'
                '    move start by the number of layers'),
    'forward': Hints(
        idea='Follow one mini-batch on its way. When it arrives at a stage: where is it, and where are the weights?',
        place='`forward`: a loop over stages and devices together. The activation moves, and the stage does not.',
        outline='for each stage and device:\n'
                '    x = what the stage makes of x, after x has been moved to the device\n'
                'return x'),
    'gradients': Hints(
        idea='A move is an operation like any other: the backward moves the gradient back. What would cut it off?',
        place='`forward`: whatever turns a tensor with a graph into one without.',
        outline='move by .to(device) alone, outside of torch.no_grad'),
    'train_step': Hints(
        idea='Which tensors meet in the loss, and where is each of them before? The rest is as on one device.',
        place='`train_step`: the target moves to the output. The optimizer and the backward need no word about '
              'devices.',
        outline='clear the gradients\n'
                'output = forward(...)\n'
                'loss = loss_fn of the output and of the target, moved to the output\n'
                'backward, then the step of the optimizer\n'
                'return the loss as a number'),
}
HINTS['traffic'] = HINTS['forward']


@check('every layer is in one stage, and the stage on its device', points=3)
def place(work: Work, random: Random) -> None:
    def where(place: Callable[[Case, nn.Sequential], Any]) -> Callable[[Case], Any]:
        def answer(case: Case) -> Any:
            with pretend_gpus(GPUS) as gpus:
                model = case.model()
                stages = place(case, model)
                return None if stages is None else found(list(stages), model, gpus)
        return answer

    def tell(case: Case, got: Any, wanted: Any) -> str:
        return f'a model of {sum(case.balance)} layers\n{case}'

    def picture(case: Case, got: Any, wanted: Any) -> str:
        return f'yours\n{drawn(got) or "no stage"}\n\nexpected\n{drawn(wanted)}' if got is not None else ''

    judge(cases(random), where(lambda case, model: work.place(model, list(case.balance), case.devices)), expected,
          suspects=[Suspect(name, where(wrong)) for name, wrong in WRONG_PLACES], tell=tell, picture=picture,
          lines=work.definition('place'))


def _run(work: Work, case: Case, gpus: PretendGpus) -> tuple[nn.Sequential, torch.Tensor]:
    """The model and the output of the learner's forward, with what can be said of how it came about."""
    model = case.model()
    stages = case.placed(model)
    x, _ = case.batch(model)
    gpus.forget()
    places = _places(model, gpus)
    with _misplaced(work, 'activation-stays'):
        output = work.forward(stages, case.devices, x)
    biases = [move for move in gpus.moves if len(move.shape) == 1]   # activations have rows, and two dimensions
    if _places(model, gpus) != places or biases:
        raise Failure(misconception='weights-travel', picture=_listed(gpus.moves), lines=work.definition('forward'))
    if output is None:
        raise Failure(misconception='returns-nothing', lines=work.definition('forward'))
    return model, output


def _places(model: nn.Module, gpus: PretendGpus) -> list[torch.device]:
    return [gpus.device_of(tensor) for tensor in (*model.parameters(), *model.buffers())]


@contextmanager
def _misplaced(work: Work, misconception: str) -> Iterator[None]:
    """CUDA's complaint about tensors in different places, said in the exercise's words."""
    try:
        yield
    except RuntimeError as error:
        if 'Expected all tensors to be on the same device' not in str(error):
            raise
        raise Failure(f'({error})', misconception=misconception, lines=work.lines(error.__traceback__)) from error


def _told(case: Case, got: Any, wanted: Any) -> str:
    return f'{case}, {case.rows} rows\nyours     {shown(got)}\nexpected  {shown(wanted)}'


@check("the output is the plain model's, on the last stage's device", points=2)
def forward(work: Work, random: Random) -> None:
    def answer(case: Case) -> Any:
        with pretend_gpus(GPUS) as gpus:
            _, output = _run(work, case, gpus)
            device = gpus.device_of(output)
        return [str(device), output.detach()]

    def truth(case: Case, device: str = '') -> Any:
        model = case.model()
        return [device or str(case.devices[-1]), model(case.batch(model)[0]).detach()]

    judge(cases(random), answer, truth, same=close, tell=_told, lines=work.definition('forward'), suspects=[
        Suspect('output-home', lambda case: truth(case, 'cpu')),
        Suspect('output-home', lambda case: truth(case, str(case.devices[0]))),
        Suspect('own-numbers', lambda case: _need_own_numbers(case) or truth(case)),
    ])


def _need_own_numbers(case: Case) -> None:
    if case.gpus != tuple(range(len(case.gpus))):
        raise RuntimeError('a stage is on another device than its number says')


def _listed(moves: list[Move]) -> str:
    return '\n'.join(map(str, moves[:12])) or 'nothing'


@check('each activation is copied once, straight to the next device, and nothing else is', points=1, after=['forward'])
def traffic(work: Work, random: Random) -> None:
    for case in cases(random):
        with pretend_gpus(GPUS) as gpus:
            _run(work, case, gpus)
            moves = list(gpus.moves)
        if moves != (wanted := crossings(case)):
            raise Failure(misconception='detour' if any(is_detour(moves, move) for move in wanted) else '',
                          case=f'{case}, {case.rows} rows on the CPU: what is copied in one forward',
                          picture=f'yours\n{_listed(moves)}\n\nexpected\n{_listed(wanted)}',
                          lines=work.definition('forward'))


def _gradients(model: nn.Module) -> list[torch.Tensor | str]:
    """Of the parameters of every layer, one after the other."""
    return ['no gradient' if parameter.grad is None else parameter.grad for parameter in model.parameters()]


@check("gradients reach all stages, and are the plain model's", points=1, after=['forward'])
def gradients(work: Work, random: Random) -> None:
    def answer(case: Case) -> Any:
        with pretend_gpus(GPUS) as gpus:
            model, output = _run(work, case, gpus)
            if output.requires_grad:
                output.square().sum().backward()
            return _gradients(model)

    def truth(case: Case, first: int = 0) -> Any:
        """With a graph that begins with that stage."""
        model = case.model()
        model(case.batch(model)[0]).square().sum().backward()
        for layer in model[:case.cuts[first][0]] if first < len(case.cuts) else model:
            layer.zero_grad()
        return _gradients(model)

    def moved_with_detach(case: Case) -> Any:
        """The graph ends where the activation was copied last."""
        changes = [k for k in range(1, len(case.gpus)) if case.gpus[k] != case.gpus[k - 1]]
        return truth(case, max(changes, default=0))

    def tell(case: Case, got: Any, wanted: Any) -> str:
        lines, parts = [], iter(got)
        for layer in case.model():
            missing = [next(parts) for _ in layer.parameters()].count('no gradient')
            lines.append(f'{layer.number} without gradient' if missing else '')
        return f'{case}\nlayers: {", ".join(filter(None, lines)) or "all have a gradient, and it is another one"}'[:200]

    judge(cases(random), answer, truth, same=close, tell=tell, lines=work.definition('forward'), suspects=[
        Suspect('detached', lambda case: truth(case, len(case.balance) - 1)),
        Suspect('detached', lambda case: truth(case, len(case.balance))),
        Suspect('detached', moved_with_detach)])


@check("three training steps leave the plain model's weights, and the loss is computed where the output is", points=3,
       after=['forward', 'gradients'])
def train_step(work: Work, random: Random) -> None:
    def answer(case: Case) -> Any:
        with pretend_gpus(GPUS) as gpus:
            model = case.model()
            stages, loss_fn = case.placed(model), Loss(gpus, case.devices[-1])
            gpus.forget()
            with _misplaced(work, ''):
                result = train(model, case, lambda model, x, target, optimizer: work.train_step(
                    stages, case.devices, x, target, loss_fn, optimizer))
            if any(len(move.shape) == 1 for move in gpus.moves):
                raise Failure(misconception='weights-travel', lines=work.definition('train_step'))
            return result

    def plainly(**how: bool) -> Callable[[Case], Any]:
        return lambda case: train(case.model(), case, lambda *given: plain_step(*given, **how))

    def tell(case: Case, got: Any, wanted: Any) -> str:
        losses = '' if isinstance(got, BaseException) else f'\nyours     losses {shown(got[0])}'
        return f'{case}: {STEPS} steps{losses}\nexpected  losses {shown(wanted[0])}'

    judge(cases(random), answer, plainly(), same=close, tell=tell, lines=work.definition('train_step'), suspects=[
        Suspect('nothing-learned', plainly(steps=False)), Suspect('nothing-learned', plainly(clears_late=True)),
        Suspect('nothing-learned', plainly(steps=False, clears=False)),
        Suspect('gradients-kept', plainly(clears=False))])
