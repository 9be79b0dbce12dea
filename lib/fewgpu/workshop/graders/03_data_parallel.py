"""Grader of exercise 03. Laws: every row counts the same; every rank takes part; the network works meanwhile."""

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from fewgpu.workshop.graders import overlaps, replicas
from fewgpu.workshop.graders.replicas import WEIGHT, Grads, Scene
from fewgpu.workshop.grading.grader import Failure, Hints, InCase, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.ranks import Deadlock, Run, run_ranks

FORBIDDEN = ('fewgpu.data_parallel', 'fewgpu.reducer', 'fewgpu.collectives', 'fewgpu.buckets',
             'torch.nn.parallel.distributed', 'torch.distributed.all_reduce', 'torch.distributed.reduce_scatter',
             'torch.distributed.all_gather')

MISCONCEPTIONS = {
    'mean-of-means': 'every rank counts the same: a row of a rank with few rows counts for more than one of a rank '
                     'with many',
    'not-a-share': 'a share is a part of all rows: the shares of all ranks add up to 1',
    'upside-down': 'the share is upside down: this rank\'s rows, divided by all rows',
    'sum': 'the gradients are added up and not weighed: they grow with the number of ranks, as if the learning rate '
           'did',
    'divides-twice': 'the gradients are weighed and then divided once more: the steps become smaller with every rank',
    'averages-weights': 'the weights are averaged; they are the same on all ranks already, and the gradients stay '
                        'different',
    'not-in-grad': "`.grad` still holds the rank's own gradient: the average has to be in `.grad`, where the "
                   "optimizer looks",
    'no-wait': '`.grad` is left while its reduction goes on: what the optimizer reads there is undefined until wait()',
    'skips-none': 'a rank without a gradient leaves its reduction out: the others wait for it, or theirs go with the '
                  'wrong one',
    'averages-first': 'the average comes before the backward: it averages what is in `.grad` then, and this backward '
                      'is left out',
    'incoming-only': 'only what this backward adds is averaged: what earlier backwards have left in `.grad` is lost, '
                     'or stays as it was',
    'hooks-stay': 'hooks of the last step are still there in the next one: a gradient is weighed and reduced twice',
    'hook-order': 'reductions start in whatever order the gradients come, which differs from rank to rank: gradients '
                  'of '
                  'different layers are added up',
    'after-backward': 'all reductions start after the backward: the network is idle during it, and the devices after '
                      'it',
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
        idea='Turn every rank\'s mean into its part of the mean over all rows; then a sum is all that is missing.',
        place='`average`: for every parameter, multiply .grad by share (in place), start its reduction, wait.',
        outline='for each parameter:\n    multiply its .grad by share, in place\n    handle = start the reduction of '
                '.grad\n'
                '    wait for handle'),
    'missing': Hints(
        idea='The others cannot know that a rank has nothing to say. What does it add to a sum if it has nothing?',
        place='`average`, where `.grad` is None.', outline='if .grad is None: make it zeros like the parameter; then '
                                                           'as always'),
    'backward': Hints(
        idea='A hook per parameter starts its reduction; after loss.backward() all that were started are waited for.',
        place='`backward`: register hooks, loss.backward(), remove the hooks, wait for all handles.',
        outline='handles = []\na hook: weigh .grad, start its reduction, append the handle\nregister it with every '
                'parameter\n'
                'loss.backward()\nremove the hooks\nwait for all handles'),
    'again': Hints(
        idea='What does .grad hold when the hook is called, and which hooks are there in the second step?',
        place='`backward`: the hook uses parameter.grad, not the tensor of another hook; hooks are removed at the end.',
        outline='register_post_accumulate_grad_hook gives you the parameter, whose .grad is the sum of all backwards\n'
                'remove() every hook after loss.backward()'),
    'order': Hints(
        idea='Who comes too early waits until all before it have started. Who has not come when the backward has '
             'ended comes then.',
        place='`backward`: a fixed list of turns (the parameters in reverse), and a set of those that are complete.',
        outline='function "start": while the next in the list is complete: weigh and start it\nhook: note that this '
                'parameter is '
                'complete; call "start"\nafter loss.backward(): note that all are complete (None becomes zeros); call '
                '"start"; wait'),
    'overlap': Hints(
        idea='The last layer\'s gradient is there first. Its reduction can run during all the rest of the backward.',
        place='`backward`: what is started inside of the hooks, in which order, and where wait() is called.',
        outline='turns are the parameters in reverse\nin the hook: start, never wait\nwait only after loss.backward() '
                'has returned'),
}


@check("a rank's share is its part of all rows", points=1)
def share(work: Work, random: Random) -> None:
    def answer(rows: tuple[int, ...]) -> list[Any]:
        return run_ranks(lambda count, rank: _number(work.share(count, rank)), list(rows)).results

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
    number = isinstance(value, (int, float)) or isinstance(value, torch.Tensor) and value.numel() == 1
    return float(value) if number else value


def close_to(one: Any, other: Any) -> bool:
    """As `close`, to single precision."""
    return close(one, other, tolerance=1e-6)


def judged(work: Work, name: str, scenes: list[Scene], suspects: list[tuple[str, Callable[[Scene], Any]]] = ()) -> None:
    """The gradients that `name` leaves, against the plain model's on all rows."""
    runs: list[Run] = []

    def answer(scene: Scene) -> Grads:
        runs.append(replicas.run(scene, getattr(work, name), whole=name == 'backward'))
        replicas.verify_waited(runs[-1], work.definition(name))
        return runs[-1].results

    getattr(work, name)   # raises if it is missing or empty
    try:
        judge(scenes, answer, Scene.truth, same=replicas.same, lines=work.definition(name),
              tell=lambda *case: f'{name} on {replicas.tell(*case)}', suspects=[
            *(Suspect(*each) for each in suspects),
            Suspect('not-in-grad', Scene.alone),
            Suspect('sum', lambda scene: scene.combined(lambda rank: 1.0)),
            Suspect('mean-of-means', lambda scene: scene.combined(lambda rank: 1 / len(scene.rows))),
            Suspect('divides-twice', lambda scene: scene.combined(lambda rank: scene.share(rank) / len(scene.rows))),
            Suspect('divides-twice', lambda scene: scene.combined(lambda rank: scene.share(rank) ** 2)),
            Suspect('divides-twice', lambda scene: [[grad * scene.share(rank) for grad in grads]
                                                    for rank, grads in enumerate(scene.truth())]),
        ])
    except Failure as failure:
        if failure.misconception == 'not-in-grad':
            failure.misconception = _what_was_reduced(runs)
        raise


def _what_was_reduced(runs: list[Run]) -> str:
    """Where every rank has kept its own gradients: what else it was that they have reduced."""
    totals = [float(reduction.total().flatten()[0]) for run in runs for reduction in run.reductions]
    if totals and all(total == 0 for total in totals):
        return 'averages-first'
    weights = {WEIGHT, *(WEIGHT * len(run.results) for run in runs)}
    only_weights = totals and all(any(close(total, one) for one in weights) for total in totals)
    return 'averages-weights' if only_weights else 'not-in-grad'


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
    with_skips_named(lambda: judged(work, 'average', scenes))


def with_skips_named(judge_them: Callable[[], None]) -> None:
    """Ranks that wait for a reduction that another has left out are explained by that."""
    try:
        judge_them()
    except InCase as found:
        if isinstance(found.error, Deadlock) or getattr(found.error, 'misconception', '') == 'different-reductions':
            found.misconception = 'skips-none'
        raise


@check('`backward` leaves averaged gradients', points=1)
def backward(work: Work, random: Random) -> None:
    judged(work, 'backward', unequal(random))


@check('what earlier backwards have left is averaged along; the next step works as well', points=1, after=['backward'])
def again(work: Work, random: Random) -> None:
    def only_new(scene: Scene, old: bool) -> Grads:
        """The average of what the last backward added, with the rank's own old gradient or without."""
        new = scene.combined(scene.share, backwards=1)
        return [[grad + (scene.local(rank, layer, scene.earlier) if old else 0) for layer, grad in enumerate(grads)]
                for rank, grads in enumerate(new)]

    judged(work, 'backward', [Scene((1, 3), earlier=1), Scene((1, 2, 1), (2, 1, 3), earlier=random.randrange(1, 4))], [
        ('incoming-only', lambda scene: only_new(scene, True)),
        ('incoming-only', lambda scene: only_new(scene, False))])
    try:
        judged(work, 'backward', [Scene((1, 3), steps=2), Scene((1, 2, 1), (2, 1, 3), steps=3)])
    except (Failure, InCase) as found:
        found.misconception = 'hooks-stay'
        if isinstance(found, InCase):
            raise Failure(misconception='hooks-stay', case=found.case, lines=work.definition('backward')) from None
        raise


@check('all ranks start the same reductions in the same order, whatever comes when', points=1, after=['backward'])
def order(work: Work, random: Random) -> None:
    with_skips_named(lambda: judged(work, 'backward', [
        Scene((1, 3), turned=(1,)), Scene((1, 3), skips=((1, 1),)),
        Scene((1, 3), (1, 1, 1), skips=((0, 1),), turned=(1,)),
        Scene((2, 1, 1), (2, 2, 2, 2), turned=(random.randrange(3),),
              skips=((random.randrange(3), random.randrange(4)),)),
    ], [('hook-order', replicas.as_they_come)]))


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
    return {'virtual seconds (backward alone)': f'{overlaps.best(scenes[1])[0]:g} ({alone:g})'}
