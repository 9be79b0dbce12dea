"""Grader of exercise 04. Laws: a place for every layer, the plain model's numbers, only activations travel."""

from collections.abc import Callable
from random import Random
from textwrap import fill
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.graders.complaints import explained
from fewgpu.workshop.graders.placed import GPUS, Case, cases, crossings, drawn, expected, found
from fewgpu.workshop.graders.placed_forward import MIXED, listed, need_own_numbers, needless, run, without_last
from fewgpu.workshop.graders.placed_intact import check_callable, check_intact
from fewgpu.workshop.graders.placed_training import STEPS, Loss, plain_step, train
from fewgpu.workshop.graders.wrong_places import WRONG_PLACES
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.gpus import pretend_gpus

FORBIDDEN = ('fewgpu.model_parallel', 'fewgpu.gpipe', 'fewgpu.pipeline', 'fewgpu.partition', 'torchgpipe')

MISCONCEPTIONS = {
    'all-on-one': 'all stages are on one device: the model needs as much of its memory as before',
    'not-moved': 'the stages are cut and stay where the model was: nothing has been moved to a GPU',
    'own-numbers': 'stage j is put on cuda:j, whatever `devices` says: only those who have all GPUs in this order '
                   'may do that',
    'one-off': 'the cut is one layer off: a layer is lost, or is in two stages',
    'boundaries': 'the balance is taken for the places of the cuts; it says how many layers each stage has',
    'from-start': 'every stage begins at layer 0, where it should begin where the stage before it has ended',
    'multiples': 'stage j begins at j times its own number of layers, as if the stages before it were as large as it',
    'shared-device': 'of the stages that share a device only one is left: two stages may live on one device',
    'equal-stages': 'the model is cut into equal stages, whatever `balance` says',
    'copies': 'the stages are copies of the layers, or have new parameters: the optimizer trains the originals, and '
              'the copies never change',
    'buffers-left': "the parameters are moved and the buffers are left behind: batch norm's running mean is one",
    'layers-changed': 'the layers are changed beside being moved: what they compute, and what is trained, is no more '
                      'what it was',
    'not-callable': 'a stage has to be called, as an nn.Sequential can be: a list, a tuple or an nn.ModuleList only '
                    'holds layers',
    'move-dropped': '.to returns a new tensor and leaves the old one where it is: the one on the GPU is not used',
    'activation-stays': 'a tensor meets weights on another device: the activation has to be moved to the device of '
                        'the stage before the stage runs',
    'weights-travel': 'the weights are moved to where the data is, in every forward; they are large and stay where '
                      'they are, and the activations travel',
    'stage-left-out': 'the last stage is left out: the output is that of the one before it',
    'output-home': "the output is moved in the end; it stays on the last stage's device, where the loss is computed",
    'detour': 'an activation takes a detour over another device on its way to the next stage: each detour is a copy '
              'more',
    'back-and-forth': 'an activation is moved to another device and comes back: two copies for nothing',
    'everywhere': 'the input is copied to several GPUs: only the first stage needs it',
    'detached': 'an activation is cut from its graph (by detach, .data, no_grad or a new tensor): no gradient '
                'reaches the stages before, so they never learn',
    'target-stays': 'the target is left where it was, and the output is on another device',
    'loss-at-home': "the loss is computed somewhere else: it belongs on the last stage's device, where the output is",
    'own-loss': 'loss_fn is never called: the step has to work with every loss that it is given',
    'loss-swapped': 'the output comes first in loss_fn, and then the target: most losses are another number the other '
                    'way round',
    'measured-again': 'the loss is measured again after the step: that costs one more forward, and batch norm counts '
                      'the mini-batch twice',
    'loss-with-graph': 'the loss is returned with its graph: whoever collects losses keeps all activations of every '
                       'step; return a number (.item())',
    'gradients-kept': 'the gradients from before the step are still there when the backward adds to them',
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
                if stages is None:
                    return None
                check_callable(work, stages := list(stages), '')
                return found(stages, model, gpus)
        return answer

    def tell(case: Case, got: Any, wanted: Any) -> str:
        layers = sum(case.balance)
        return f'a model of {layers} layer{"s" if layers > 1 else ""}\n{case}'

    def picture(case: Case, got: Any, wanted: Any) -> str:
        return f'yours\n{drawn(got) or "no stage"}\n\nexpected\n{drawn(wanted)}' if got is not None else ''

    judge(cases(random), where(lambda case, model: work.place(model, list(case.balance), case.devices)), expected,
          suspects=[Suspect(name, where(wrong)) for name, wrong in WRONG_PLACES], tell=tell, picture=picture,
          lines=work.definition('place'))
    for case in cases(random):
        check_intact(work, case)


def _told(case: Case, got: Any, wanted: Any) -> str:
    if isinstance(got, BaseException):
        return f'{case}, {case.rows} rows'
    return f'{case}, {case.rows} rows\nyours     {shown(got)}\nexpected  {shown(wanted)}'


@check("the output is the plain model's, on the last stage's device", points=2)
def forward(work: Work, random: Random) -> None:
    def answer(case: Case) -> Any:
        with pretend_gpus(GPUS) as gpus:
            _, output = run(work, case, gpus)
            device = gpus.device_of(output)
        return [str(device), output.detach()]

    def truth(case: Case, device: str = '') -> Any:
        model = case.model()
        return [device or str(case.devices[-1]), model(case.batch(model)[0]).detach()]

    judge(cases(random), answer, truth, same=close, tell=_told, lines=work.definition('forward'), suspects=[
        Suspect('output-home', lambda case: truth(case, 'cpu')),
        Suspect('output-home', lambda case: truth(case, str(case.devices[0]))),
        Suspect('stage-left-out', lambda case: without_last(case, case.devices[-1])),
        Suspect('stage-left-out', lambda case: without_last(case, ([torch.device('cpu')] + case.devices)[-2])),
        Suspect('own-numbers', lambda case: need_own_numbers(case) or truth(case))])


@check('each activation is copied once, straight to the next device, and nothing else is', points=1, after=['forward'])
def traffic(work: Work, random: Random) -> None:
    for case in cases(random):
        with pretend_gpus(GPUS) as gpus:
            run(work, case, gpus)
            moves = list(gpus.moves)
        if moves != (wanted := crossings(case)):
            raise Failure(misconception=needless(moves, wanted),
                          case=f'{case}\n{case.rows} rows on the CPU: what is copied in one forward',
                          picture=f'yours\n{listed(moves)}\n\nexpected\n{listed(wanted)}',
                          lines=work.definition('forward'))


def _gradients(model: nn.Module) -> list[torch.Tensor | str]:
    """Of the parameters of every layer, one after the other."""
    return ['no gradient' if parameter.grad is None else parameter.grad for parameter in model.parameters()]


@check("gradients reach all stages, and are the plain model's", points=1, after=['forward'])
def gradients(work: Work, random: Random) -> None:
    def answer(case: Case) -> Any:
        with pretend_gpus(GPUS) as gpus:
            model, output = run(work, case, gpus)
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
        if isinstance(got, BaseException):
            return str(case)
        parts, missing = iter(got), []
        for layer in case.model():
            if 'no gradient' in [next(parts) for _ in layer.parameters()]:
                missing.append(str(layer.number))
        return f'{case}\n' + (fill(f'layers without a gradient: {", ".join(missing)}', 76) if missing else
                              'all layers have a gradient, and it is another one')

    judge(cases(random), answer, truth, same=close, tell=tell, lines=work.definition('forward'), suspects=[
        Suspect('detached', lambda case: truth(case, len(case.balance) - 1)),
        Suspect('detached', lambda case: truth(case, len(case.balance))),
        Suspect('detached', moved_with_detach)])


@check("three training steps leave the plain model's weights, and the loss is computed where the output is", points=3,
       after=['forward', 'gradients'])
def train_step(work: Work, random: Random) -> None:
    has_graph = []

    def answer(case: Case) -> Any:
        with pretend_gpus(GPUS) as gpus:
            model = case.model()
            stages, loss_fn = case.placed(model), Loss(gpus, case.devices[-1])
            gpus.forget()
            with explained(work, {MIXED: ''}):
                result, with_graph = train(model, case, lambda model, x, target, optimizer: work.train_step(
                    stages, case.devices, x, target, loss_fn, optimizer))
            has_graph.append(with_graph)
            if any(len(move.shape) == 1 for move in gpus.moves):
                raise Failure(misconception='weights-travel', lines=work.definition('train_step'))
            if not loss_fn.calls:
                raise Failure(misconception='own-loss', lines=work.definition('train_step'))
            return result

    def plainly(**how: bool) -> Callable[[Case], Any]:
        return lambda case: train(case.model(), case, lambda *given: plain_step(*given, **how))[0]

    def losses(result: Any) -> str:
        return ', '.join(f'{loss:.6g}' for loss in result[0])

    def tell(case: Case, got: Any, wanted: Any) -> str:
        if isinstance(got, BaseException):
            return f'{case}: {STEPS} steps'
        same = ' (other weights)' if close(got[0], wanted[0]) else ''
        return f'{case}: {STEPS} steps\nyours     losses {losses(got)}{same}\nexpected  losses {losses(wanted)}'

    judge(cases(random), answer, plainly(), same=close, tell=tell, lines=work.definition('train_step'), suspects=[
        Suspect('nothing-learned', plainly(steps=False)), Suspect('nothing-learned', plainly(clears_late=True)),
        Suspect('nothing-learned', plainly(steps=False, clears=False)),
        Suspect('gradients-kept', plainly(clears=False)),
        Suspect('gradients-kept', plainly(clears=False, clears_last=True)),
        Suspect('loss-swapped', plainly(swaps=True)), Suspect('measured-again', plainly(measures_again=True))])
    if any(has_graph):
        raise Failure(misconception='loss-with-graph', lines=work.definition('train_step'),
                      case='loss = train_step(...)\nloss.requires_grad\nyours     True\nexpected  a number')
