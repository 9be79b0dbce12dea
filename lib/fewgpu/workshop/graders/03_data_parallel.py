"""Grader of exercise 03. Laws: every row counts the same; every rank takes part; the network works meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch

from fewgpu.workshop.graders import overlaps, replicas
from fewgpu.workshop.graders.averages import judged, with_hooks_named, with_skips_named
from fewgpu.workshop.graders.complete import verify_complete
from fewgpu.workshop.graders.replicas import Grads, Scene
from fewgpu.workshop.grading.grader import Failure, Hints, InCase, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.ranks import Rank, run_ranks

FORBIDDEN = ('fewgpu.data_parallel', 'fewgpu.reducer', 'fewgpu.collectives', 'fewgpu.buckets',
             'torch.nn.parallel.distributed', 'torch.distributed.all_reduce', 'torch.distributed.reduce_scatter',
             'torch.distributed.all_gather')

MISCONCEPTIONS = {
    'mean-of-means': 'every rank counts the same: a row of a rank with few rows counts for more than one of a rank '
                     'with many',
    'not-a-share': 'a share is a part of all rows: the shares of all ranks add up to 1',
    'upside-down': "the share is upside down: it is this rank's rows, divided by all rows",
    'sum': 'the gradients are added up and not weighed: they grow with the number of ranks, as if the learning rate '
           'did',
    'weighed-after': "the sum over all ranks is weighed by this rank's share: a share belongs to this rank's own "
                     'gradient, before the sum',
    'divides-twice': 'the gradients are weighed and then divided once more: the steps become smaller with every rank',
    'averages-weights': 'the weights are averaged: they are the same on all ranks already, it is the gradients that '
                        'differ',
    'changes-weights': 'the weights are changed: the step is taken by the optimizer, later',
    'not-in-grad': "`.grad` still holds the rank's own gradient: the average has to be in `.grad`, where the "
                   'optimizer looks',
    'other-shape': 'the gradient has not the shape of its parameter: it works for weights of one dimension, not for '
                   'matrices',
    'no-wait': '`.grad` is left while its reduction goes on: what the optimizer reads there is undefined until wait()',
    'filled-in-flight': '`.grad` is filled from a tensor whose reduction goes on (a hook of register_hook gets the '
                        'gradient before it is in `.grad`): what was undefined then stays undefined',
    'skips-none': 'a rank without a gradient leaves its reduction out: the others wait for it, or theirs go with the '
                  'wrong one',
    'stays-none': 'a rank without a gradient takes part, but its own `.grad` stays None: it has to take the same step '
                  'as all others',
    'averages-first': 'the average comes before the backward: it averages what is in `.grad` then, and this backward '
                      'is left out',
    'too-early': 'a reduction starts before its gradient is complete: zeros are reduced, and the backward adds to them '
                 'later (does `in` ask for the parameter itself, or for one with equal numbers, as in a list?)',
    'incoming-only': 'only what this backward adds is averaged: what earlier backwards have left in `.grad` is lost, '
                     'or stays as it was',
    'loss-weighed': 'the loss is weighed, and not `.grad`: what earlier backwards have left there goes into the sum '
                    'unweighed',
    'old-lost': 'a layer that this backward does not use gets zeros, though earlier backwards have left something in '
                'its `.grad`: zeros are for None only',
    'hooks-stay': 'hooks of earlier steps are still there: they pile up, and are called again in every later step',
    'hook-order': 'reductions start in whatever order the gradients come, which differs from rank to rank: gradients '
                  'of different layers are added up',
    'after-backward': 'all reductions start after the backward: the network is idle during it, and the devices after '
                      'it',
    'all-at-once': 'no reduction starts before the last gradient is complete: the network could have had the others '
                   'long before',
    'forward-order': 'the reductions start in the order of the layers, but the gradient of the first layer comes last: '
                     'everything waits for it',
    'waits-in-hook': 'the hook waits, and so holds up the backward: whoever waits there computes nothing meanwhile',
}

HINTS = {
    'share': Hints(
        idea='A rank knows only its own rows. What do all have to tell each other?',
        place='`share`: a tensor of one number, and start_all_reduce(...).wait() on it.',
        outline='total = a tensor that holds rows\nreduce it over all ranks, and wait\nreturn rows / total'),
    'average': Hints(
        idea="Turn every rank's mean into its part of the mean over all rows; then a sum is all that is missing.",
        place='`average`: for every parameter, multiply .grad by share (in place), start its reduction, wait.',
        outline='for each parameter:\n    multiply its .grad by share, in place\n    handle = start the reduction of '
                '.grad\n    wait for handle'),
    'missing': Hints(
        idea='The others cannot know that a rank has nothing to say. What does it add to a sum if it has nothing?',
        place='`average`, where `.grad` is None.',
        outline='if .grad is None: make it zeros like the parameter; then as always'),
    'backward': Hints(
        idea='A hook per parameter starts its reduction; after loss.backward() all that were started are waited for.',
        place='`backward`: register hooks, loss.backward(), remove the hooks, wait for all handles.',
        outline='handles = []\na hook: weigh .grad, start its reduction, append the handle\nregister it with every '
                'parameter\nloss.backward()\nremove the hooks\nwait for all handles'),
    'again': Hints(
        idea='What does .grad hold when the hook is called, and which hooks are there in the second step?',
        place='`backward`: the hook uses parameter.grad, not the tensor of another hook; hooks are removed at the end.',
        outline='register_post_accumulate_grad_hook gives you the parameter, whose .grad is the sum of all backwards\n'
                'remove() every hook after loss.backward()'),
    'order': Hints(
        idea='Who comes too early waits until all before it have started. Who has not come when the backward has '
             'ended comes then.',
        place='`backward`: a fixed list of turns (the parameters in reverse), and a set of those that are complete.',
        outline='function "start": while the next in the list is complete: weigh and start it\n'
                'hook: note that this parameter is complete; call "start"\n'
                'after loss.backward(): note that all are complete (None becomes zeros); call "start"; wait'),
    'overlap': Hints(
        idea="The last layer's gradient is there first. Its reduction can run during all the rest of the backward.",
        place='`backward`: what is started inside of the hooks, in which order, and where wait() is called.',
        outline='turns are the parameters in reverse\nin the hook: start, never wait\nwait only after loss.backward() '
                'has returned'),
}


@check("a rank's share is its part of all rows", points=1)
def share(work: Work, random: Random) -> None:
    def answer(rows: tuple[int, ...]) -> list[Any]:
        run = run_ranks(on_rank, list(rows), strict=False)
        verify_complete(run, work.definition('share'))
        return run.results

    def on_rank(count: int, rank: Rank) -> object:
        try:
            return _number(work.share(count, rank))
        except Exception as error:
            if not rank.unfinished:
                raise
            raise Failure(f'(So comes {type(error).__name__}: {error}.)', misconception='never-waited',
                          lines=work.lines(error.__traceback__)) from error

    def each(function: Callable[[int, tuple[int, ...]], float]) -> Callable[[tuple[int, ...]], list[float]]:
        return lambda rows: [float(function(count, rows)) for count in rows]

    cases = [(1, 3), (2, 2), (5,), (1, 2, 4),
             *(tuple(random.randrange(1, 40) for _ in range(size)) for size in (3, 4, 5))]
    judge(cases, answer, each(lambda count, rows: count / sum(rows)), same=close_to, suspects=[
        Suspect('mean-of-means', each(lambda count, rows: 1 / len(rows))),
        Suspect('not-a-share', each(lambda count, rows: count)),
        Suspect('not-a-share', each(lambda count, rows: sum(rows))),
        Suspect('not-a-share', each(lambda count, rows: 1.0)),
        Suspect('not-a-share', each(lambda count, rows: count * len(rows) / sum(rows))),
        Suspect('upside-down', each(lambda count, rows: sum(rows) / count)),
        Suspect('returns-nothing', lambda rows: [None for _ in rows]),
    ], lines=work.definition('share'), tell=lambda rows, got, wanted:
        f'share(rows, rank) on {len(rows)} ranks with {", ".join(map(str, rows))} rows' + (
            '' if isinstance(got, Exception) else f'\nyours     {shown(got)}\nexpected  {shown(wanted)}'))


def _number(value: object) -> object:
    """A tensor of one number is as good as a float: gradients can be multiplied by both."""
    number = isinstance(value, (int, float)) or isinstance(value, torch.Tensor) and value.numel() == 1
    return float(value) if number else value


def close_to(one: Any, other: Any) -> bool:
    """As `close`, to single precision."""
    return close(one, other, tolerance=1e-6)


def unequal(random: Random) -> list[Scene]:
    """Ranks with different numbers of rows."""
    return [Scene((1, 3)), Scene((2, 2)), Scene((3,)), Scene((1, 2, 1), (2, 1, 3)),
            *(Scene(tuple(random.randrange(1, 20) for _ in range(size)), (1, 3, 2)) for size in (2, 3, 4))]


@check("averaged gradients are the plain model's on the rows of all ranks", points=2)
def average(work: Work, random: Random) -> None:
    judged(work, 'average', unequal(random))


@check('a rank without a gradient takes part with zeros', points=1, after=['average'])
def missing(work: Work, random: Random) -> None:
    scenes = [Scene((1, 3), skips=((1, 0),)), Scene((1, 3), skips=((0, 1),)),
              Scene((2, 1, 1), (1, 1, 2), skips=((0, 1), (2, 2))),
              Scene((1, 1, 3), (2, 1, 1), skips=((random.randrange(3), random.randrange(3)),))]
    with_skips_named(lambda: judged(work, 'average', scenes, [('stays-none', stays_none)]))


def stays_none(scene: Scene) -> Grads:
    """All right, but where a rank has had no gradient there is none."""
    return [[None if scene.local(rank, layer) is None else grad for layer, grad in enumerate(grads)]
            for rank, grads in enumerate(scene.truth())]


@check('`backward` leaves averaged gradients', points=1)
def backward(work: Work, random: Random) -> None:
    judged(work, 'backward', unequal(random))


@check('what earlier backwards have left is averaged along; the next step works as well', points=1, after=['backward'])
def again(work: Work, random: Random) -> None:
    def only_new(scene: Scene, old: bool) -> Grads:
        """The average of what the last backward added, with the rank's own old gradient or without."""
        new = scene.combined(scene.share, old=False)
        return [[grad + (scene.local(rank, layer, new=False) if old else 0) for layer, grad in enumerate(grads)]
                for rank, grads in enumerate(new)]

    def old_unweighed(scene: Scene) -> Grads:
        new, old = scene.combined(scene.share, old=False), scene.combined(lambda rank: 1.0, new=False)
        return [[one + other for one, other in zip(*each)] for each in zip(new, old)]

    judged(work, 'backward', [Scene((1, 3), earlier=1), Scene((1, 2, 1), (2, 1, 3), earlier=random.randrange(1, 4))], [
        ('incoming-only', lambda scene: only_new(scene, True)),
        ('incoming-only', lambda scene: only_new(scene, False)),
        ('loss-weighed', old_unweighed)])
    with_hooks_named(work, [Scene((1, 3), steps=2), Scene((1, 2, 1), (2, 1, 3), steps=3)])


@check('all ranks start the same reductions in the same order, whatever comes when', points=1, after=['backward'])
def order(work: Work, random: Random) -> None:
    with_skips_named(lambda: judged(work, 'backward', [
        Scene((1, 3), turned=(1,)), Scene((1, 3), skips=((1, 1),)),
        Scene((1, 3), (1, 1, 1), skips=((0, 1),), turned=(1,)),
        Scene((2, 1, 1), (2, 2, 2, 2), turned=(random.randrange(3),),
              skips=((random.randrange(3), random.randrange(4)),)),
    ], [('hook-order', replicas.as_they_come), ('hook-order', replicas.only_what_comes), ('stays-none', stays_none)]))
    try:
        judged(work, 'backward', [Scene((1, 3), earlier=1)])
    except (Failure, InCase):
        return   # the check before says it
    with_skips_named(lambda: judged(work, 'backward', [
        Scene((1, 3), earlier=1, rests=((1, 0),)), Scene((1, 3), earlier=1, rests=((0, 1),)),
    ], [('old-lost', lambda scene: replace(scene, skips=scene.rests).combined(scene.share))]))


@check('the network works while the backward goes on', points=3, after=['backward'])
def overlap(work: Work, random: Random) -> dict[str, str]:
    scenes = [Scene((1, 1), (1, 1), seconds=(2.0, 2.0, 1.0), latency=0.5),
              Scene((1, 3), (4, 2, 2), seconds=(1.0, 1.0, 1.0, 3.0), latency=0.25, bandwidth=16.0),
              Scene((2, 1, 1), (1, 8, 2, 4), seconds=(1.0, 1.0, 2.0, 1.0, 1.0), slow=(1.0, 2.0, 1.0), latency=0.1,
                    bandwidth=64.0)]
    sizes = tuple(random.randrange(1, 9) for _ in range(5))
    scenes.append(Scene((1, 2, 3), sizes, latency=0.1, bandwidth=80.0,
                        seconds=tuple(random.randrange(1, 5) / 2 for _ in range(len(sizes) + 1))))
    for scene in scenes:
        run, least = replicas.run(scene, work.backward, whole=True), overlaps.best(scene)[0]
        if run.makespan > least * (1 + 1e-9):
            raise Failure(misconception=overlaps.culprit(scene, run), lines=work.definition('backward'),
                          case=f'{len(scene.rows)} ranks, {len(scene.sizes)} layers of {scene.sizes} numbers\n'
                               f'yours     {run.makespan:g} virtual seconds\nexpected  {least:g}',
                          picture=overlaps.picture(scene, run))
    alone = overlaps.complete_at(scenes[1])[-1]
    return {'virtual seconds': f'{overlaps.best(scenes[1])[0]:g}, of which the backward takes {alone:g}'}
