"""Flags of `./workshop.py plan` that change nothing: it is planned again without each of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fewgpu.planner.cluster import Cluster, preset
from fewgpu.planner.search import unexplained
from fewgpu.planner.ways import Prediction, Task

#: What a flag is called, by the field of the cluster that it sets.
FLAGS = {'per_server': '--per-server', 'memory': '--memory', 'between': '--bandwidth', 'inside': '--inside',
         'latency': '--latency', 'flops': '--tflops', 'flops32': '--tflops', 'efficiency': '--efficiency',
         'host_bandwidth': '--host-bandwidth', 'host_memory': '--host-memory', 'disk_bandwidth': '--disk-bandwidth'}


def without_effect(task: Task, given: dict[str, Any], cluster: str, ranked: Sequence[Prediction], *,
                   stale: bool = True) -> list[str]:
    """Of the flags that were given and change no prediction: which, and why.

    given: by field of the cluster, None for flags that were not; `ranked`: what was planned with all of them.
    """
    said = []
    for name in (name for name, value in given.items() if value is not None and name in FLAGS):
        rest = {other: value for other, value in given.items() if value is not None and other != name}
        place = preset(cluster, **rest)
        if place == task.cluster:
            said.append(f'{FLAGS[name]} changes nothing: it is what {cluster} has.')
            continue
        again = unexplained(replace(task, cluster=place), stale=stale)
        if [replace(one, task=task) for one in again] == list(ranked):
            said.append(f'{FLAGS[name]} changes nothing: {_why_not(name, task.cluster)}.')
    return said


def _why_not(name: str, place: Cluster) -> str:
    """Why a flag without effect has none."""
    if name == 'between' and place.servers == 1:
        return 'all devices are in one server'
    if name == 'inside' and min(place.devices, place.per_server) == 1:
        return 'there is one device a server'
    if name == 'per_server' and place.devices == 1:
        return 'there is one device'
    if name == 'latency' and place.devices == 1:
        return 'one device sends no messages'
    return 'every way is predicted the same without it'
