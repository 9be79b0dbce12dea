"""Stages, replicas and tensor ranks: from plain training on one device to all three at once.

    plain: 1 x 1 x 1     data parallel: replicas     pipelines: stages     hybrids: several of them
"""

from statistics import fmean

from fewgpu.planner.model import StageSums
from fewgpu.planner.way_memory import activations, states
from fewgpu.planner.ways import Prediction, Knobs, Task, Times, times


def predict(name: str, task: Task, knobs: Knobs) -> Prediction:
    """A step of pipelines side by side.

    With m micro-batches and stages that take f + b each, 1F1B and GPipe take (m + p - 1)(f + b), and for
    stages that differ (m - 1) times the slowest and once each; 2BW never drains: m (f + b). Recompute
    overlaps the wait for the first gradient, so the bubble has none. What links add is in
    `waits_for_messages`. Gradients of all replicas are all-reduced while the last micro-batch runs backward
    (2BW: while the whole step runs); what is left is waited for.

    Raises ValueError for more stages than layers.
    """
    stages = task.model.stages(knobs.stages, knobs.tensor)
    seconds = {stage: times(task, knobs, stage) for stage in set(stages)}   # most are alike
    every = [seconds[stage] for stage in stages]
    chunks = knobs.chunks(task.batch)
    slowest = max(every, key=lambda one: one.slot)
    slot, again, link = map(fmean, zip(*((one.slot, one.again, one.link) for one in every)))
    others = sum(one.forward + one.backward for one in every) - slowest.forward - slowest.backward
    if knobs.schedule == '2bw':
        bubble = 0.0
    elif knobs.schedule == 'one at a time':
        bubble = chunks * (sum(one.slot for one in every) - slowest.slot)
    else:
        bubble = others
    parts = {
        'compute': chunks * (slot - again - link),
        'recompute': chunks * again,
        'uneven stages': chunks * (slowest.slot - slot),
        'bubble': bubble,
        'tensor link': chunks * link,
        'stage link': waits_for_messages(task, knobs, stages, slowest),
        'data link': _waits_for_gradients(task, knobs, stages, every, chunks * slowest.slot)}
    return Prediction(name, knobs, task, parts, _memory(task, knobs, stages))


def waits_for_messages(task: Task, knobs: Knobs, stages: tuple[StageSums, ...], slowest: Times) -> float:
    """Seconds that the largest message between stages, which takes c, adds to a step of m micro-batches.

    GPipe: 2(p-1) c, and a phase whose messages take longer than its computation runs at their pace.
    1F1B: 2 c (p + m - 2 - ceil((m-1)/p)), read off the event simulation, which it equals for equal stages
    and messages (if they differ it is a little above): p micro-batches are under way, so that each p of
    them wait for a round trip. And m messages take m c to leave, if that is longer than the computation.
    2BW: 2(p-1) c m/p, the same without the ends. One at a time: 2(p-1) c each.
    """
    p, m = knobs.stages, knobs.chunks(task.batch)
    if p == 1:
        return 0.0
    size = knobs.rows * max(stage.crossing for stage in stages) * task.precision.number / knobs.tensor
    c = task.cluster.send(size, p, knobs.tensor * knobs.replicas)
    trips = 2 * (p - 1)
    if knobs.schedule == 'one at a time':
        return trips * m * c
    if knobs.schedule == 'gpipe':
        backward = slowest.backward + slowest.again
        return trips * c + (m - 1) * (max(c - slowest.forward, 0.0) + max(c - backward, 0.0))
    if knobs.schedule == '2bw':
        return trips * c * m / p
    trips_wait = 2 * c * (p + m - 2 - -(-(m - 1) // p))
    queue_waits = (m + 2 * p - 3) * c - (m - 1) * slowest.slot
    return max(trips_wait, queue_waits)


def _waits_for_gradients(task: Task, knobs: Knobs, stages: tuple[StageSums, ...], every: list[Times],
                         step: float) -> float:
    if knobs.replicas == 1:
        return 0.0
    parameters, hides = max((stage.parameters, one.backward + one.again) for stage, one in zip(stages, every))
    seconds = task.cluster.all_reduce(task.precision.gradient * parameters, knobs.replicas, knobs.tensor)
    return max(0.0, seconds - (step if knobs.schedule == '2bw' else hides))


def in_flight(knobs: Knobs, chunks: int, stage: int) -> int:
    """How many micro-batches a stage has under way at most: m in GPipe, p - s in 1F1B and 2BW."""
    if knobs.schedule == 'one at a time':
        return 1
    return chunks if knobs.schedule == 'gpipe' else min(chunks, knobs.stages - stage)


def _memory(task: Task, knobs: Knobs, stages: tuple[StageSums, ...]) -> dict[str, float]:
    """Of the fullest stage."""
    chunks, precision = knobs.chunks(task.batch), task.precision
    extra = precision.weight if knobs.schedule == '2bw' and knobs.stages > 1 else 0   # a second version
    kept = [precision.number * activations(stage, knobs.rows, in_flight(knobs, chunks, index),
                                           knobs.recompute) for index, stage in enumerate(stages)]
    fullest = max(range(len(stages)),
                  key=lambda index: (precision.state + extra) * stages[index].parameters + kept[index])
    found = states(stages[fullest].parameters, precision)
    found['weights'] += extra * stages[fullest].parameters
    return found | {'activations': kept[fullest]}
