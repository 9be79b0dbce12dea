"""Gradients that ranks leave, judged against the plain model's; what else can be wrong with them in exercise 03."""

from collections.abc import Callable
from typing import Any

from fewgpu.workshop.graders import replicas
from fewgpu.workshop.graders.replicas import WEIGHT, Grads, Scene
from fewgpu.workshop.grading.grader import Failure, InCase
from fewgpu.workshop.grading.law import Suspect, close, judge
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.misuse import Deadlock
from fewgpu.workshop.practice.ranks import Run
from fewgpu.workshop.practice.wires import ChangedInFlight


OTHER_SHAPE = 'attempting to assign a gradient of size', 'assigned grad has data of a different size'   # torch says


def judged(work: Work, name: str, scenes: list[Scene], suspects: list[tuple[str, Callable[[Scene], Any]]] = (),
           hooks: list[int] | None = None) -> None:
    """The gradients that `name` leaves, against the plain model's on all rows. `hooks` as in `replicas.run`."""
    runs: list[Run] = []

    def answer(scene: Scene) -> Grads:
        runs.append(replicas.run(scene, getattr(work, name), name == 'backward', hooks))
        replicas.verify_waited(runs[-1], work.definition(name))
        return [left.grads for left in runs[-1].results]

    getattr(work, name)   # raises if it is missing or empty
    try:
        judge(scenes, answer, Scene.truth, same=replicas.same, lines=work.definition(name),
              tell=lambda *case: f'{name} on {replicas.tell(*case)}',
              suspects=[Suspect(*each) for each in [*suspects, *ALWAYS]])
    except InCase as found:
        if any(text in str(found.error) for text in OTHER_SHAPE):
            found.misconception = 'other-shape'
        if isinstance(found.error, ChangedInFlight) and name == 'backward' and not found.error.sent.any():
            found.misconception = 'too-early'
        raise
    except Failure as failure:
        if failure.misconception == 'not-in-grad':
            failure.misconception = _what_was_reduced(runs)
        raise
    _verify_weights(runs, work, name)


def _after(scene: Scene) -> Grads:
    """The plain sum, weighed by every rank's own share."""
    return [[grad * scene.share(rank) for grad in grads]
            for rank, grads in enumerate(scene.combined(lambda rank: 1.0))]


ALWAYS = [
    ('not-in-grad', Scene.alone),
    ('sum', lambda scene: scene.combined(lambda rank: 1.0)),
    ('weighed-after', _after),
    ('mean-of-means', lambda scene: scene.combined(lambda rank: 1 / len(scene.rows))),
    ('divides-twice', lambda scene: scene.combined(lambda rank: scene.share(rank) / len(scene.rows))),
    ('divides-twice', lambda scene: scene.combined(lambda rank: scene.share(rank) ** 2)),
    ('divides-twice', lambda scene: [[grad * scene.share(rank) for grad in grads]
                                     for rank, grads in enumerate(scene.truth())]),
]


def _are_weights(run: Run, total: float) -> bool:
    return any(close(total, weight) for weight in (WEIGHT, WEIGHT * len(run.results)))


def _what_was_reduced(runs: list[Run]) -> str:
    """Where every rank has kept its own gradients: what else it was that they have reduced."""
    totals = [(run, float(reduction.total().flatten()[0])) for run in runs for reduction in run.reductions]
    if totals and all(total == 0 for _, total in totals):
        return 'averages-first'
    return 'averages-weights' if totals and all(_are_weights(*each) for each in totals) else 'not-in-grad'


def _verify_weights(runs: list[Run], work: Work, name: str) -> None:
    """Raise `Failure` if the weights are others now, or have been averaged as well."""
    for run in runs:
        if any(_are_weights(run, float(reduction.total().flatten()[0])) for reduction in run.reductions):
            raise Failure(misconception='averages-weights', lines=work.definition(name))
        for rank, left in enumerate(run.results):
            for layer, weight in enumerate(left.weights):
                if not close(weight, replicas.full(weight.numel(), WEIGHT)):
                    raise Failure(misconception='changes-weights', lines=work.definition(name),
                                  case=f'{name}: the weights of layer {layer} on rank {rank}\nbefore    {WEIGHT}\n'
                                       f'after     {float(weight.flatten()[0]):g}')


def with_skips_named(judge_them: Callable[[], None]) -> None:
    """Ranks that wait for a reduction that another has left out are explained by that."""
    try:
        judge_them()
    except InCase as found:
        if isinstance(found.error, Deadlock) or getattr(found.error, 'misconception', '') == 'different-reductions':
            found.misconception = 'skips-none'
        raise


def with_hooks_named(work: Work, scenes: list[Scene]) -> None:
    """Several steps, one after the other: what is wrong is explained by hooks that are left, if there are any."""
    for scene in scenes:
        hooks: list[int] = []
        try:
            judged(work, 'backward', [scene], hooks=hooks)
        except (Failure, InCase) as found:
            if not any(hooks):
                raise
            raise Failure(misconception='hooks-stay', case=found.case, lines=work.definition('backward')) from None
        if hooks[-1] > hooks[0]:
            raise Failure(misconception='hooks-stay', lines=work.definition('backward'),
                          case=f'backward on {len(scene.rows)} ranks with {scene}\n'
                               f'yours     hooks after every step: {", ".join(map(str, hooks))}\n'
                               f'expected  not more and more of them')
