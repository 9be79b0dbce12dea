"""How the share of communication grows with the machines, in data parallelism.

    from fewgpu.planner.growth import communication_share

    communication_share(known('vgg16'), preset('v100-16'), [1, 2, 4, 8, 16])

The setting of PipeDream's motivation (arXiv 1806.03377, section 2): every device has the same number of
samples however many there are, and the more devices there are, the larger a share of a step is spent on
all-reduces.
"""

from collections.abc import Iterable
from dataclasses import replace

from fewgpu.planner.cluster import Cluster
from fewgpu.planner.model import Model
from fewgpu.planner.way_memory import PRECISIONS, Precision
from fewgpu.planner.ways import Knobs, Task, times


def communication_share(model: Model, cluster: Cluster, machines: Iterable[int], *, rows: int = 32,
                        precision: Precision = PRECISIONS['fp32'], overlap: bool = False) -> list[float]:
    """The share of a step that all-reduces take, for each number of servers, of `per_server` devices each.

    A device has `rows` samples a step. Without `overlap` the all-reduce follows the backward, and the share
    is A / (C + A); with it, what the backward does not hide counts: max(0, A - B) / (C + max(0, A - B)).
    A = 2(g-1)/g S/inside + 2(k-1)/k S/between for k servers of g devices, and latencies, so that the share
    never falls.

    Raises ValueError for fewer machines than one, or fewer rows.
    """
    machines = list(machines)
    if rows < 1 or any(count < 1 for count in machines):
        raise ValueError(f'shares are of at least one machine and one sample a device, not {machines} and {rows}')
    stage, = model.stages(1)
    shares = []
    for count in machines:
        devices = count * cluster.per_server
        task = Task(model, replace(cluster, devices=devices), rows * devices, precision)
        one = times(task, Knobs(replicas=devices, rows=rows), stage)
        waits = task.cluster.all_reduce(precision.gradient * model.parameters, devices)
        waits = max(0.0, waits - one.backward) if overlap else waits
        shares.append(waits / (one.forward + one.backward + waits))
    return shares
