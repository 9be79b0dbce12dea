"""ZeRO: data parallelism whose ranks share the model states out; and offload, where hosts keep them.

Sources: ZeRO (arXiv 1910.02054), ZeRO-Infinity (arXiv 2104.07857).
"""

from fewgpu.planner.way_memory import activations, states
from fewgpu.planner.ways import Prediction, Knobs, Task, Times, times


def predict(name: str, task: Task, knobs: Knobs) -> Prediction:
    """A step of ZeRO's stage 1, 2 or 3, whose ranks each have the layers of the whole model.

    What is sent, in numbers a rank and step, for P parameters and m micro-batches:
    stages 1 and 2 reduce-scatter gradients and all-gather weights, 2 P, as data parallelism does (stage 2
    reduces after every micro-batch: (m+1) P); stage 3 gathers weights for each forward and backward: 3 P m.
    A reduce-scatter hides behind a micro-batch's backward, a gather behind the pass that it is for.
    """
    if knobs.offload:
        return _offload(name, task, knobs)
    stage, = task.model.stages(1)
    one, chunks = times(task, knobs, stage), knobs.chunks(task.batch)
    gather, scatter = _collectives(task, knobs)
    backward = one.backward + one.again
    if knobs.zero == 3:
        link = chunks * (max(0.0, gather - one.forward) + max(0.0, gather + scatter - backward))
    else:
        reductions = chunks if knobs.zero == 2 else 1
        link = reductions * max(0.0, scatter - backward) + max(0.0, gather - one.forward)
    parts = _computes(one, chunks) | {'data link': link}
    memory = states(task.model.parameters, task.precision, shards=knobs.replicas, zero=knobs.zero)
    if knobs.zero == 3 and knobs.replicas > 1:
        memory['weights'] += _working(task, task.precision.weight)
    return Prediction(name, knobs, task, parts, memory | {'activations': _activations(task, knobs)})


def _offload(name: str, task: Task, knobs: Knobs) -> Prediction:
    """ZeRO-3 with all model states in the memory of hosts or, if that is too small, on disks.

    Every device reads its slice of the weights over its own link, twice a micro-batch, and writes its slice
    of the gradients; slices are gathered among devices. A three-stage prefetch lets compute, network, host
    link and disk go on at the same time: a micro-batch takes as long as the slowest of them. Hosts update
    afterwards: they read and write all states once. (ZeRO-Infinity's own formula, `fewgpu.infinity`'s
    `efficiency`, overlaps nothing.)
    """
    stage, = task.model.stages(1)
    one, chunks, cluster = times(task, knobs, stage), knobs.chunks(task.batch), task.cluster
    gather, scatter = _collectives(task, knobs)
    per_server = min(knobs.replicas, cluster.per_server)
    servers = -(-knobs.replicas // per_server)
    total = task.precision.state * task.model.parameters
    on_disk = total / servers > cluster.host_memory
    moved = (2 * task.precision.weight + task.precision.gradient) * task.model.parameters / knobs.replicas
    update = 2 * total / servers / cluster.host_update
    if on_disk:
        update = max(update, 2 * total / knobs.replicas / cluster.disk_bandwidth)
    seconds, parts = one.slot, _computes(one, chunks)
    for link, needs in (('data link', 2 * gather + scatter), ('host link', moved / cluster.host_bandwidth),
                        ('disk', moved / cluster.disk_bandwidth if on_disk else 0.0)):
        parts[link] = chunks * max(0.0, needs - seconds)
        seconds = max(seconds, needs)
    parts['update by hosts'] = update
    memory = {'weights': _working(task, task.precision.weight), 'gradients': _working(task, task.precision.gradient),
              'activations': _activations(task, knobs)}
    return Prediction(name, knobs, task, parts, memory, host=total / servers,
                      beyond=on_disk and total / servers > cluster.disk_memory)


def _computes(one: Times, chunks: int) -> dict[str, float]:
    return {'compute': chunks * (one.forward + one.backward), 'recompute': chunks * one.again}


def _collectives(task: Task, knobs: Knobs) -> tuple[float, float]:
    """Seconds to gather all weights, and to reduce all gradients."""
    return tuple(task.cluster.reduce_scatter(size * task.model.parameters, knobs.replicas)
                 for size in (task.precision.weight, task.precision.gradient))


def _working(task: Task, size: int) -> float:
    """Bytes of the layer that computes and of the one that is fetched meanwhile."""
    return min(2 * task.model.largest, task.model.parameters) * size


def _activations(task: Task, knobs: Knobs) -> float:
    stage, = task.model.stages(1)
    return task.precision.number * activations(stage, knobs.rows, 1, knobs.recompute)
