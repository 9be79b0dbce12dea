"""Grader of exercise 09. The script builds the pipeline that its flags ask for, and trains as the plain script does."""

import importlib.util
import textwrap
from collections.abc import Callable
from random import Random

import torch

from fewgpu import GPipe
from fewgpu.workshop.graders.built import Placed, Seen, build, undone
from fewgpu.workshop.graders.trained import begins_as_the_seed_says, plain_loss, run_to_report
from fewgpu.workshop.grading.grader import Failure, Hints, InCase, check
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.gpus import pretend_gpus

MISCONCEPTIONS = {
    'whole-model-moved': 'the whole model is moved to one device: a model that needs several does not fit there. GPipe '
                         'moves every stage to its own',
    'no-pipeline': 'what build returns is no pipeline: the model has to be wrapped in GPipe',
    'numbers-ignored': '--balance_by gives the layers of every stage, and the stages get others',
    'wrong-stages': 'there are not as many stages as --devices asks for',
    'balance-ignored': 'a balance is found, and the pipeline is cut by another one',
    'not-measured': 'the layers are dealt out without being measured',
    'time-for-memory': 'time and memory are mixed up: --balance_by says by which of them to balance',
    'whole-mini-batch': 'the layers are measured with the whole mini-batch, but a device works on one micro-batch at a '
                        'time: give balance_by_time one of them, and balance_by_size chunks=args.num_microbatches',
    'count-for-rows': 'the layers are measured with --num_microbatches rows: that is how many micro-batches there are, '
                      'not how many rows each of them has',
    'one-sample': 'the layers are measured with a single sample: small batches spend their time and memory differently',
    'cut-twice': 'the layers are measured with a part of a micro-batch: it is cut once before balance_by_size, which '
                 'cuts what it gets into chunks itself',
    'devices-not-passed': 'GPipe does not get the devices that the script has made: it takes some of its own, which '
                          'know nothing of --memory_limit',
    'chunks-not-passed': '--num_microbatches does not reach GPipe as its chunks: how many micro-batches there are',
    'checkpoint-not-passed': '--checkpoint does not reach GPipe: it recomputes what it likes',
    'engine-ignored': '--engine torchgpipe is asked for, and the pipeline is another: pipeline_of(args.engine) has the '
                      'right GPipe',
    'other-weights': 'the pipeline has other weights than the model that build has made from the seed: is it that one '
                     'that is wrapped?',
    'target-on-first': 'the target is on the first device, and the output, from which the loss comes, on the last',
    'target-on-second': 'the target is on the second device: the output comes out of the last, which need not be the '
                        'second',
    'input-on-last': 'the input is on the last device, and the layers that take it are on the first',
    'swapped': 'input and target are swapped: the input goes to the first device, the target to the last',
    'not-moved': 'something is not moved at all: it stays on the CPU, and the model is on GPUs',
    'default-device': 'a device is named without asking the pipeline, which may live on others: model.devices has them',
}

HINTS = {
    'whole_model': Hints(
        idea='Why do we build a pipeline at all? The model may be too large for any one device.',
        place='Step 2: the line that moves the model.', outline='the line goes, and nothing comes in its place'),
    'numbers': Hints(
        idea='args.balance_by is "time", "memory", or already a list of layers a stage.',
        place='Step 3: the last of three cases. Step 4: the balance reaches GPipe.',
        outline='if by time: ...\nelse if by memory: ...\nelse: the balance is args.balance_by'),
    'by_time': Hints(
        idea='What will a device have before it when it works? That is what to measure with.',
        place='Step 3, by time: the number of rows of the sample.',
        outline='as many stages as devices\nsample: random images, (rows, 1, 28, 28)\n'
                'micro-batch: the first piece of the sample, cut into args.num_microbatches\n'
                'balance_by_time of stages, model, micro-batch'),
    'by_memory': Hints(
        idea='balance_by_size cuts the mini-batch itself: it wants to know into how many.',
        place='Step 3, by memory: two arguments, the sample and chunks.',
        outline='balance_by_size of stages, model, a sample of args.batchsize rows, chunks as args say'),
    'passed_on': Hints(
        idea='A flag that nobody reads does nothing. Which flags are about the pipeline?',
        place='Step 4: the call of GPipe.',
        outline='GPipe of model and balance, with devices (those of the script), chunks (args.num_microbatches) and '
                'checkpoint (args.checkpoint)'),
    'engine': Hints(
        idea='There are two GPipes, ours and the one to compare with. Who knows which is wanted?',
        place='Step 4: where the name GPipe comes from.', outline='GPipe = pipeline_of of args.engine'),
    'place': Hints(
        idea='Follow a mini-batch: where is the first layer? Where does the output come out, and what is it compared '
             'with?',
        place='Step 5: two devices out of model.devices.',
        outline='x goes to the first of model.devices, y to the last'),
    'training': Hints(idea='A pipeline trains what the plain model trains, micro-batch by micro-batch.',
        place='All that you have changed: diff exercises/mnist_pytorch.py exercises/09_mnist_gpipe.py',
        outline='./workshop.py reset 09 brings the exercise back (and keeps a copy of yours); do the five steps again'),
}

_SMALL = '--arch resnet18 --batchsize 22 --num_microbatches 4'   # micro-batches of 6, 6, 5 and 5 rows
_ROWS, _SLOW = (5, 6), 30.0   # those of a micro-batch; seconds for checks that build networks


def pipeline(work: Work, text: str) -> Seen:
    """What the learner's `build` makes of these flags, if that is a pipeline."""
    seen = build(work, text)
    refuse_error(work, text, seen)
    if not hasattr(seen.model, 'balance') or not hasattr(seen.model, 'partitions'):
        undone(work, 3)
        undone(work, 4)
        raise Failure(misconception='no-pipeline', lines=work.definition('build'),
                      case=f'{command(text)}\nyours     {type(seen.model).__name__}\nexpected  GPipe')
    return seen


def refuse_error(work: Work, text: str, seen: Seen) -> None:
    """Raise what has kept the learner's `build` from its end; that may be a step that is not done yet."""
    if seen.error:
        undone(work, 3)
        undone(work, 4)
        said = str(seen.error)
        raise InCase(seen.error, command(text), 'whole-model-moved' if 'denied to move' in said else
                     'wrong-stages' if 'too few devices' in said else '')


def command(text: str) -> str:
    return textwrap.fill(f'09_mnist_gpipe.py {text}', 76, subsequent_indent='    ', break_on_hyphens=False)


def failed(work: Work, misconception: str, text: str, what: str, yours: object, expected: object) -> Failure:
    case = f'{command(text)}\n{what}\nyours     {yours}\nexpected  {expected}'
    return Failure(misconception=misconception, lines=work.definition('build'), case=case)


@check('--balance_by with numbers is the balance', points=1, seconds=_SLOW)
def numbers(work: Work, random: Random) -> None:
    first = random.randrange(1, 12)
    for balance in ([9, 5], [3, 4, 7], [first, 13 - first, 1]):
        text = f'{_SMALL} --devices {len(balance)} --balance_by {",".join(map(str, balance))}'
        if (got := list(pipeline(work, text).model.balance)) != balance:
            raise failed(work, 'numbers-ignored', text, 'model.balance', got, balance)


@check('the model is never moved as a whole', points=1, after=['numbers'], seconds=_SLOW)
def whole_model(work: Work, random: Random) -> None:
    text = f'{_SMALL} --devices 2 --balance_by 9,5'
    if moved := pipeline(work, text).moved:
        raise Failure(misconception='whole-model-moved', lines=moved[:1])


def measured(work: Work, kind: str, devices: int) -> None:
    """Is the model balanced by this kind of cost, of one micro-batch?"""
    text = f'{_SMALL} --devices {devices} --balance_by {kind}'
    seen = pipeline(work, text)
    kinds = {what for what, _ in seen.measured}
    if not kinds:
        how = {'time': 'balance_by_time', 'memory': 'balance_by_size'}[kind]
        raise failed(work, 'not-measured', text, 'model.balance', list(seen.model.balance), f'what {how} says')
    if not kinds & {kind, 'both'}:
        raise failed(work, 'time-for-memory', text, 'measured', *kinds, kind)
    rows = [rows for what, rows in seen.measured if what in (kind, 'both')][-1]
    if rows not in _ROWS:
        name = {22: 'whole-mini-batch', 4: 'count-for-rows', 1: 'one-sample'}.get(rows, '')
        if rows == 2 and kind == 'memory':   # 6 rows in 4 chunks
            name = 'cut-twice'
        raise failed(work, name, text, 'rows of the micro-batch that was measured', rows, 6)
    if len(seen.model.balance) != devices:
        raise failed(work, 'wrong-stages', text, 'stages', len(seen.model.balance), devices)
    if seen.cuts and list(seen.model.balance) not in seen.cuts:
        raise failed(work, 'balance-ignored', text, 'model.balance', list(seen.model.balance), seen.cuts[-1])


@check('--balance_by time balances by the time of one micro-batch', points=1, after=['numbers'], seconds=_SLOW)
def by_time(work: Work, random: Random) -> None:
    measured(work, 'time', 2)
    measured(work, 'time', 3)


@check('--balance_by memory balances by the memory of one micro-batch', points=1, after=['numbers'], seconds=_SLOW)
def by_memory(work: Work, random: Random) -> None:
    measured(work, 'memory', 2)
    measured(work, 'memory', 3)


@check('devices, micro-batches and recompute are as the flags say', points=2, after=['numbers'], seconds=_SLOW)
def passed_on(work: Work, random: Random) -> None:
    for balance, chunks, checkpoint in (('9,5', 3, 'always'), ('3,4,7', 5, 'never'), ('9,5', 2, 'except_last')):
        text = (f'--arch resnet18 --balance_by {balance} --num_microbatches {chunks} --checkpoint {checkpoint} '
                '--batchsize 22 --memory_limit 900MB')
        model = pipeline(work, text).model
        limits = [device.memory_limit for device in model.stage_devices]
        if set(limits) != {900_000_000}:
            raise failed(work, 'devices-not-passed', text, 'memory limits of the devices', limits,
                         [900_000_000] * len(limits))
        if model.chunks != chunks:
            raise failed(work, 'chunks-not-passed', text, 'model.chunks', model.chunks, chunks)
        if model.checkpoint != checkpoint:
            raise failed(work, 'checkpoint-not-passed', text, 'model.checkpoint', model.checkpoint, checkpoint)


@check('--engine says whose GPipe it is', points=1, after=['numbers'], seconds=_SLOW)
def engine(work: Work, random: Random) -> None:
    text = f'{_SMALL} --devices 2 --balance_by 9,5 --engine '
    if not isinstance(model := pipeline(work, f'{text}fewgpu').model, GPipe):
        raise failed(work, '', f'{text}fewgpu', 'the model', type(model), GPipe)
    text += 'torchgpipe'
    try:
        model = pipeline(work, text).model
    except SystemExit:
        if importlib.util.find_spec('torchgpipe'):
            raise
        return   # pipeline_of says how to install it: so it was asked
    if isinstance(model, GPipe):
        raise failed(work, 'engine-ignored', text, 'the model', 'GPipe of fewgpu', 'GPipe of torchgpipe')


@check('the input goes to the first device, the target to the last', points=2)
def place(work: Work, random: Random) -> None:
    def placed(devices: list[int]) -> list[str]:
        with pretend_gpus(3):
            x, y = torch.rand(4, 1, 28, 28), torch.randint(10, (4,))
            result = work.place(Placed([f'cuda:{index}' for index in devices]), x, y)
            if not isinstance(result, (tuple, list)) or any(not isinstance(part, torch.Tensor) for part in result):
                return result
            if not all(torch.equal(part.cpu(), given) for part, given in zip(result, (x, y))):
                return 'other values'
            return [str(part.device) for part in result]

    def at(x: int | None, y: int | None):
        return lambda case: ['cpu' if end is None else f'cuda:{case[end]}' for end in (x, y)]

    def named(where: Callable[[list[int]], tuple[int, int]]) -> Suspect:
        return Suspect('default-device', lambda case: [f'cuda:{index}' for index in where(case)])

    fixed = [named(lambda case, ends=(x, y): ends) for x in range(3) for y in range(3)]
    partly = [*map(named, [lambda case: (0, len(case) - 1), lambda case: (0, case[-1]), lambda case: (case[0], 0)])]
    judge([[0, 1], [0, 1, 2], [2, 0], [1, 2, 0]], placed, at(0, -1), suspects=[Suspect('target-on-first', at(0, 0)),
        Suspect('target-on-second', at(0, 1)), Suspect('input-on-last', at(-1, -1)), Suspect('swapped', at(-1, 0)),
        *(Suspect('not-moved', at(*ends)) for ends in ((None, None), (0, None), (None, -1))), *fixed, *partly,
    ], tell=told, lines=work.definition('place'))


def told(case: list[int], got: object, wanted: list[str]) -> str:
    def ends(devices: object) -> str:
        placed = isinstance(devices, list) and len(devices) == 2
        return f'x on {devices[0]}, y on {devices[1]}' if placed else shown(devices)

    return (f'place(model, x, y), model.devices: {", ".join(f"cuda:{index}" for index in case)}\n'
            f'yours     {ends(got)}\nexpected  {ends(wanted)}')


@check('it trains as the plain model does, micro-batch by micro-batch', points=1, seconds=60,
       after=['numbers', 'passed_on', 'place'])
def training(work: Work, random: Random) -> dict[str, str]:
    text = (f'--arch resnet18 --samples 16 --test_samples 8 --batchsize 6 --num_microbatches 3 --devices 2 '
            f'--balance_by 9,5 --lr 0.05 --seed {random.randrange(1000)}')
    report, expected = run_to_report(work, text), plain_loss(text)
    if abs(report['loss'] - expected) > 1e-3 * max(1.0, expected):
        named = '' if begins_as_the_seed_says(pipeline(work, text).model, text) else 'other-weights'
        case = f'{command(text)}\nlast loss\nyours     {report["loss"]:.5f}\nexpected  {expected:.5f}'
        raise Failure(misconception=named, case=case, lines=work.definition('train'))
    memory = [f'{device["name"]} {device["peak"] / 1e6:.0f} MB' for device in report['memory']]
    return {'speed': f'{report["samples_per_second"]:.1f} samples/sec', 'peak memory': ', '.join(memory)}
