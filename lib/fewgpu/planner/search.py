"""Every way at its best knobs, ranked: a small search over closed forms, whose size does not grow with the
devices.

    ranked = fastest_first(Task(known('gpt-2.2B'), preset('v100-16', devices=64), batch=512))
    ranked[0].name, ranked[0].samples_per_second, ranked[0].memory_bytes, ranked[0].parts
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from fewgpu.planner import way_pipeline, way_zero
from fewgpu.planner.way_why import why
from fewgpu.planner.ways import Prediction, Knobs, Task

MOST_ROWS = 4096   #: samples of a micro-batch: larger ones are not tried
EVERY = 8          #: so many stages, replicas and tensor ranks, and fewer, are all tried

Tries = Callable[[Task], Iterator[Knobs]]


def powers(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`, and `most` itself."""
    return [*(2**k for k in range(most.bit_length()) if 2**k < most), most]


def replica_counts(most: int) -> list[int]:
    """All up to EVERY, powers of two, and `most`, `most` // 2, `most` // 4, ...: those of twice as many contain
    them."""
    every = range(1, min(most, EVERY) + 1)
    return sorted({*every, *powers(most), *(most >> k for k in range(most.bit_length() if most else 0))} - {0})


def stage_counts(task: Task, room: int) -> list[int]:
    """All up to EVERY, 2^k, 3 2^k and the divisors of the devices, up to so many devices or the layers, and
    that number itself."""
    most, devices = min(room, len(task.model.layers)), task.cluster.devices
    every = range(1, min(most, EVERY) + 1)
    divisors = (count for count in range(1, most + 1) if devices % count == 0)
    threes = (3 * 2**k for k in range(most.bit_length()) if 3 * 2**k < most)
    return sorted({*every, *powers(most), *threes, *divisors})


def _rows(task: Task, knobs: Knobs, kinds: tuple[str, ...]) -> Iterator[Knobs]:
    """The knobs with every size of micro-batches and every recompute."""
    most = -(-task.batch // knobs.replicas)
    if knobs.schedule == '2bw':   # updates after at least as many micro-batches as there are stages
        most //= knobs.stages
    for recompute in kinds if most else ():
        for rows in powers(min(most, MOST_ROWS)):
            one = replace(knobs, rows=rows, recompute=recompute)
            if knobs.schedule != '2bw' or one.chunks(task.batch) >= knobs.stages:
                yield one


def _replicas(task: Task, share: int = 1) -> int:
    """How many replicas of `share` devices each there can be, and have samples."""
    return min(task.cluster.devices // share, task.batch)


def _plain(task: Task) -> Iterator[Knobs]:
    yield from _rows(task, Knobs(), ('never', 'layers'))


def _data(task: Task, **fixed: int | bool) -> Iterator[Knobs]:
    counts = replica_counts(_replicas(task))
    for replicas in counts if fixed.get('offload') else counts[1:] or [1]:
        yield from _rows(task, Knobs(replicas=replicas, **fixed), ('never', 'layers'))


def _pipeline(task: Task, schedule: str) -> Iterator[Knobs]:
    for stages in stage_counts(task, task.cluster.devices)[1:] or [1]:
        kinds = ('never', 'layers', 'stages') if stages > 1 and schedule != 'one at a time' else ('never', 'layers')
        yield from _rows(task, Knobs(stages=stages, schedule=schedule), kinds)


def _grid(task: Task, schedule: str, tensors: list[int]) -> Iterator[Knobs]:
    """Tensor ranks x stages x replicas, more than one of two of these, where there are devices for it."""
    for tensor in tensors:
        room = max(1, task.cluster.devices // tensor)
        for stages in stage_counts(task, room):
            kinds = ('never', 'layers', 'stages') if stages > 1 else ('never', 'layers')
            for replicas in replica_counts(_replicas(task, tensor * stages)):
                grid = Knobs(replicas=replicas, stages=stages, tensor=tensor, schedule=schedule)
                if _dimensions(grid) >= 2 or task.cluster.devices < 4:
                    yield from _rows(task, grid, kinds)


def _dimensions(knobs: Knobs) -> int:
    """In how many of these there is parallelism: tensor ranks, stages, replicas."""
    return sum(count > 1 for count in (knobs.tensor, knobs.stages, knobs.replicas))


def _tensor(task: Task, least: int) -> list[int]:
    """Sizes of groups of tensor ranks: they divide the heads, and a server, so that none is in two of them."""
    here = min(task.cluster.devices, task.cluster.per_server)
    sizes = [size for size in range(1, min(here, task.model.heads) + 1) if task.model.heads % size == 0
             and (here % size == 0 or task.cluster.per_server % size == 0)]
    return [size for size in sizes if size >= least] or sizes[-1:]


def _tensor_alone(task: Task) -> Iterator[Knobs]:
    for tensor in _tensor(task, 2):
        yield from _rows(task, Knobs(tensor=tensor), ('never', 'layers'))


def _all_three(task: Task) -> Iterator[Knobs]:
    yield from _grid(task, '1f1b', _tensor(task, 2))


#: Every way: its knobs, and who predicts it. Of ways that are equally fast the first is preferred.
WAYS: dict[str, tuple[Tries, Callable[[str, Task, Knobs], Prediction]]] = {
    'plain, one device': (_plain, way_pipeline.predict),
    'data parallel': (_data, way_pipeline.predict),
    'model parallel': (partial(_pipeline, schedule='one at a time'), way_pipeline.predict),
    'GPipe': (partial(_pipeline, schedule='gpipe'), way_pipeline.predict),
    '1F1B': (partial(_pipeline, schedule='1f1b'), way_pipeline.predict),
    '2BW': (partial(_pipeline, schedule='2bw'), way_pipeline.predict),
    '1F1B x data': (partial(_grid, schedule='1f1b', tensors=[1]), way_pipeline.predict),
    '2BW x data': (partial(_grid, schedule='2bw', tensors=[1]), way_pipeline.predict),
    'tensor parallel': (_tensor_alone, way_pipeline.predict),
    'tensor x 1F1B x data': (_all_three, way_pipeline.predict),
    'ZeRO-1': (partial(_data, zero=1), way_zero.predict),
    'ZeRO-2': (partial(_data, zero=2), way_zero.predict),
    'ZeRO-3': (partial(_data, zero=3), way_zero.predict),
    'offload': (partial(_data, zero=3, offload=True), way_zero.predict),
}


def best(way: str, task: Task) -> Prediction:
    """A way at the knobs that fit and are fastest; if none fit, at those that need least memory.

    Raises ValueError with the names if there is no such way, and if the samples are too few for it.
    """
    if way not in WAYS:
        raise ValueError(f"there is no way {way!r}; choose from {', '.join(WAYS)}")
    tries, predict = WAYS[way]
    found = [predict(way, task, knobs) for knobs in tries(task)]
    if not found:
        raise ValueError(f'{way} needs more samples ({task.batch}) or devices ({task.cluster.devices}): a sample for '
                         'each replica, under 2BW also for each stage, and in a hybrid two or more of two of these: '
                         'tensor ranks, stages, replicas')
    return _best(found)


def _best(found: list[Prediction]) -> Prediction:
    fitting = [one for one in found if one.fits]
    if fitting:
        return min(fitting, key=lambda one: (one.step, one.knobs.devices, one.memory_bytes))
    return min(found, key=lambda one: (one.beyond, one.memory_bytes, one.step))


def _with_most_devices(one: Prediction) -> Prediction:
    """The same way, made to use as many devices as it can: why more are no help."""
    tries, predict = WAYS[one.name]
    all_ = list(tries(one.task))
    most = max(knobs.devices for knobs in all_)
    return _best([predict(one.name, one.task, knobs) for knobs in all_ if knobs.devices == most])


def _without_recompute(one: Prediction) -> Prediction:
    """The same knobs, but nothing is run again."""
    return WAYS[one.name][1](one.name, one.task, replace(one.knobs, recompute='never'))


def ways_for(task: Task) -> list[str]:
    """Those that the task can take, and that are not another way under a second name.

    Layers are split among tensor ranks by their heads, and each replica, and each stage under 2BW, needs a
    sample. With one of each all but offload are plain training; a hybrid has two dimensions (see `_dimensions`).
    """
    return [way for way, (tries, _) in WAYS.items() if any(
        _dimensions(knobs) >= _least(way) and (knobs.tensor > 1 or not way.startswith('tensor'))
        for knobs in tries(task))]


def _least(way: str) -> int:
    """How many dimensions (see `_dimensions`) a way has at least, or it is another one."""
    if way in ('plain, one device', 'offload'):
        return 0
    return 2 if ' x ' in way else 1


def fastest_first(task: Task, *, stale: bool = True) -> list[Prediction]:
    """All ways, the fastest that fits first, those that do not fit last, each with its sentence `why`.

    `stale`: also ways whose updates use gradients of older weights (2BW).
    """
    return [replace(one, why=why(one, _with_most_devices(one), _without_recompute(one)))
            for one in unexplained(task, stale=stale)]


def unexplained(task: Task, *, stale: bool = True) -> list[Prediction]:
    """`fastest_first`, but without the sentences, which take as long again."""
    names = [way for way in ways_for(task) if stale or not way.startswith('2BW')]
    return sorted((best(way, task) for way in names), key=_order)


def _order(one: Prediction) -> tuple[bool, float]:
    """Speeds that differ by rounding are equal."""
    return not one.fits, float(f'{one.step:.9g}') if one.fits else one.memory_bytes
