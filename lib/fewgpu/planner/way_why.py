"""Why a way wins or loses, in a sentence."""

from fewgpu.planner.cluster import amount
from fewgpu.planner.ways import Prediction

#: What a device does in a part of its step, if it does not compute.
WAITS = {
    'recompute': 'is spent on recompute',
    'uneven stages': 'is lost because the layers do not divide evenly among the stages',
    'bubble': 'is idle in the bubble',
    'tensor link': 'waits for all-reduces between tensor ranks',
    'stage link': 'waits for messages between stages',
    'data link': 'waits for gradients and weights of other replicas',
    'host link': 'waits for the link to the host',
    'disk': 'waits for disks',
    'update by hosts': 'waits for hosts to update the weights',
}


def why(one: Prediction, fuller: Prediction, keeping: Prediction) -> str:
    """What fills the memory, if it does not fit; else what its devices wait for most, and for how long; and
    what recompute is for.

    `fuller` is the same way where it uses as many devices as it can: it tells why more would not help.
    `keeping` is the same without recompute.
    """
    if not one.fits:
        return _does_not_fit(one)
    if keeping.fits:
        return _waits(one, fuller)
    return (f'{_waits(one, fuller)}; without recompute it would take {amount(keeping.memory_bytes)} a device, '
            f'{amount(keeping.memory.get("activations", 0.0))} of it activations')


def _waits(one: Prediction, fuller: Prediction) -> str:
    if one.knobs.schedule == 'one at a time' and one.knobs.stages > 1:
        return f'one of {one.knobs.stages} devices works at a time, and the others wait for it'
    used = one.knobs.devices / one.task.cluster.devices
    most = _greatest_loss(one)
    lost = used * one.parts[most] / one.step if most else 0.0
    if 1.0 - used > max(lost, 0.005):
        return _unused(one, fuller)
    return _loses(one, most) if lost > 0.005 else 'next to nothing is lost'


def _greatest_loss(one: Prediction) -> str | None:
    """The part of a step that takes longest, of those in which nothing is computed."""
    return max((part for part in one.parts if part != 'compute' and one.parts[part] > 0.0),
               key=lambda part: one.parts[part], default=None)


def _loses(one: Prediction, part: str) -> str:
    said = f'{seconds(one.parts[part])} of {seconds(one.step)} a step {WAITS[part]}'
    if part == 'uneven stages':
        layers = one.task.model.layers
        largest = max(layers, key=lambda layer: layer.flops)
        said += f': the largest layer, {largest.name}, is {largest.flops / one.task.model.flops:.1%} of the work'
    return said + _link(one, part)


def _unused(one: Prediction, fuller: Prediction) -> str:
    """Why devices have nothing to do."""
    there, used, knobs = one.task.cluster.devices, one.knobs.devices, one.knobs
    said = f'{there - used} of {there} devices have nothing to do'
    if fuller.knobs.devices > used:
        part = _greatest_loss(fuller)
        return f'{said}; on {fuller.knobs.devices}, {_loses(fuller, part)}' if part else said
    if knobs.devices == 1:
        return f'{said}: it takes one'
    if knobs.replicas == one.task.batch:
        return f'{said}: there are {knobs.replicas} samples to share out'
    if knobs.stages == len(one.task.model.layers):
        return f'{said}: there are {knobs.stages} layers to cut between'
    if knobs.devices == knobs.tensor:
        return f'{said}: tensor ranks share heads and a server'
    return f'{said}: they make no whole pipeline'


def _does_not_fit(one: Prediction) -> str:
    cluster = one.task.cluster
    if one.memory_bytes <= cluster.memory:
        return (f'a server would have to keep {amount(one.host)} of model states, and its disks have '
                f'{amount(cluster.disk_memory)}')
    parts = sorted(one.memory, key=one.memory.get, reverse=True)[:2]
    filled = ' and '.join(f'{amount(one.memory[part])} {part}' for part in parts)
    return f'lacks {amount(one.memory_bytes - cluster.memory)} a device even at its most frugal: {filled}'


def _link(one: Prediction, part: str) -> str:
    """Which link it is, and how fast."""
    cluster, knobs = one.task.cluster, one.knobs
    if part == 'host link':
        return f' ({amount(cluster.host_bandwidth)}/s)'
    if part == 'disk':
        return f' ({amount(cluster.disk_bandwidth)}/s a device)'
    spans = {'tensor link': knobs.tensor, 'stage link': knobs.devices,
             'data link': knobs.tensor * knobs.replicas}.get(part)
    if spans is None:
        return ''
    if spans <= cluster.per_server:
        return f' (inside servers, {amount(cluster.inside)}/s)'
    return f' (between servers, {amount(cluster.between)}/s)'


def seconds(value: float) -> str:
    """Seconds, for people: '1.23 s', '45 ms'."""
    if value >= 1.0:
        return f'{value:.3g} s' if value < 1000 else f'{value:.0f} s'
    return f'{1e3 * value:.3g} ms' if value >= 1e-3 else f'{1e6 * value:.3g} µs'
