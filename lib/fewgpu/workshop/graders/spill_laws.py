"""For the grader of exercise 15: which law a step in shards breaks first, and what is behind it."""

from typing import Any

import torch

from fewgpu.workshop.graders.spills import (GPU, LARGE, MODELS, ROWS, WIDTH, WRONG_STEPS, Gradients, Model, Watched,
                                            plain, watch)
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import number

BETWEEN = 4   # tensors as large as a boundary that may be on the device, while no shard is, in the forwards

_COMPLAINTS = {
    'does not require grad': 'no-graph',
    'Expected all tensors to be on the same device': 'elsewhere',
    'implicitly created only for scalar': 'no-leaf',
    "'NoneType' object has no attribute": 'no-leaf',
}


def step(work: Work, model: Model) -> Watched:
    """What became of the learner's step. What torch complains of is explained."""
    try:
        return watch(work.train_step, model)
    except (RuntimeError, AttributeError) as error:
        lines = work.lines(error.__traceback__)
        named = next((name for text, name in _COMPLAINTS.items() if text in str(error)), '')
        if not named or not lines or isinstance(error, Failure):
            raise
        raise Failure(f'(Python says: {str(error).splitlines()[0][:200]})', misconception=named, lines=lines) from error


def check_gradients(work: Work) -> None:
    """Raise Failure unless loss and gradients are those of the plain model."""
    seen: dict[Model, Watched] = {}

    def answer(model: Model) -> Any:
        seen[model] = watched = step(work, model)
        loss = watched.loss
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            raise Failure('What is returned has a graph.', misconception='loss-with-graph', lines=_where(work))
        return None if loss is None else (number(loss), watched.gradients)

    def tell(model: Model, got: Any, wanted: tuple[float, Gradients]) -> str:
        if isinstance(got, BaseException) or got is None:
            return str(model)
        (k, name), mine, true = _differing(got, wanted)
        what = 'the loss' if k < 0 else f'shards[{k}].{name}.grad'
        return f'{model}\n{what}\nyours     {shown(mine)}\nexpected  {shown(true)}'

    judge(MODELS, answer, plain, suspects=[Suspect(*each) for each in WRONG_STEPS], tell=tell, lines=_where(work),
          same=lambda got, wanted: got is not None and _differing(got, wanted) is None,
          why=_why)
    for model, watched in seen.items():
        if watched.are_weights_changed or watched.is_batch_changed:
            name = 'weights-changed' if watched.are_weights_changed else 'callers-tensor'
            raise Failure(misconception=name, case=str(model), lines=_where(work))


def _why(model: Model, got: Any, wanted: tuple[float, Gradients]) -> str:
    """Which shards have no gradients, or whether all of them are right."""
    if _differing(got, (None, wanted[1])) is None:
        return 'The gradients are right; what is returned is not the loss.'
    without = [k for k, shard in enumerate(got[1]) if all(each is None for each in shard)]
    return f'Shards without gradients: {", ".join(map(str, without))}.' if without else ''


def _differing(got: tuple[Any, Gradients], wanted: tuple[float | None, Gradients]) -> tuple | None:
    """(shard, name), yours, expected: the last that differ, for the backward begins there; shard -1 is the loss."""
    names = [f'{layer}.{kind}' for layer in (0, 2, 4) for kind in ('weight', 'bias')]
    for k in reversed(range(len(wanted[1]))):
        for name, mine, true in zip(names, got[1][k], wanted[1][k]):
            if (mine is None) != (true is None) or not close(mine, true):
                return (k, name), mine, true
    return None if wanted[0] is None or close(got[0], wanted[0]) else ((-1, ''), got[0], wanted[0])


def check_one_at_a_time(work: Work) -> None:
    """Raise Failure unless one shard at a time is on the device, and nothing of others but what is between two."""
    for model in [*MODELS, LARGE]:
        seen = step(work, model)
        away = [run.shard for run in seen.runs if not run.on_device]
        if away:
            raise _failure(work, model, 'not-loaded', f'Shard {away[0]} runs on the host.')
        if seen.together or any(run.others for run in seen.runs):
            name = 'two-at-once'
            if seen.most == model.count > 2:
                name = 'all-at-once' if not seen.runs[0].others or len(seen.runs[0].others) == model.count - 1 else name
                name = 'never-unloaded' if not seen.runs[0].others else name
            elif model.count == 2:   # too few to tell
                name = _of_more(work, 'two-at-once')
            pair = seen.together or [seen.runs[0].shard, *seen.runs[0].others][:2]
            raise _failure(work, model, name, f'Shards {" and ".join(map(str, sorted(pair)))} are there together.')
        if seen.left:
            raise _failure(work, model, _of_more(work, 'stays-there'), f'On the device at the end: shards {seen.left}.')
    boundary, most = ROWS * WIDTH * 8, max(seen.between[:LARGE.count], default=0)   # of the forwards
    if most > BETWEEN * boundary:
        first = seen.runs[:model.count - 1]
        name = 'graph-kept' if any(run.with_graph for run in first) else 'inputs-there'
        raise _failure(work, model, name if [run.shard for run in first] == [*range(model.count - 1)] else '',
                       f'When a shard comes there are {most} bytes on the device beside it; what goes from one shard '
                       f'to the next has {boundary}.', _bytes(seen))


def _of_more(work: Work, otherwise: str) -> str:
    """With five shards it shows whether all of them are together."""
    seen = step(work, MODELS[-1])
    if seen.most < MODELS[-1].count:
        return otherwise
    return 'all-at-once' if seen.runs and len(seen.runs[0].others) == MODELS[-1].count - 1 else 'never-unloaded'


def _bytes(seen: Watched) -> str:
    """What is there, beside weights, each time that a shard comes."""
    most = max(seen.between) or 1
    return '\n'.join(f'load {n:<3} {"#" * round(50 * each / most)} {each} bytes' for n, each in enumerate(seen.between))


def check_moves(work: Work) -> dict[str, str]:
    """Raise Failure if shards come more often than they have to, or run more often."""
    for model in MODELS[:3]:
        seen, sizes = step(work, model), [sum(each.nbytes for each in shard.parameters()) for shard in model.shards()]
        least = 2 * sum(sizes) - sizes[-1]
        runs = [sum(run.shard == k for run in seen.runs) for k in range(model.count)]
        case = f'{model}\nbytes of weights that come to the device\nyours     {seen.loaded}\nexpected  {least}'
        if seen.loaded > least:
            more = step(work, MODELS[2])   # three shards: enough to tell
            is_last = sum(run.shard == 2 for run in more.runs) == 2 and more.loaded == 2 * _bytes_of(MODELS[2])
            name = 'last-comes-twice' if is_last else 'comes-too-often'
            raise Failure(misconception=name, case=case, lines=_where(work))
        if runs[-1] > 1:
            raise Failure(f'Forwards of each shard: {runs}.', misconception='last-runs-twice', case=str(model),
                          lines=_where(work))
    times = step(work, LARGE).loaded / _bytes_of(LARGE)
    return {f'{LARGE.count} shards': f'the weights come to the device {times:.2f} times, and it never holds more than '
                                     f'about 1/{LARGE.count} of them'}


def _bytes_of(model: Model) -> int:
    return sum(each.nbytes for shard in model.shards() for each in shard.parameters())


def _failure(work: Work, model: Model, misconception: str, message: str, picture: str = '') -> Failure:
    return Failure(message, misconception=misconception, case=f'{model}, device={GPU}', picture=picture,
                   lines=_where(work))


def _where(work: Work) -> list[Line]:
    return work.definition('train_step')


