"""When reductions run beside a backward: the least time that it takes, what took longer, and a drawing of both."""

from fewgpu.workshop.graders.replicas import NUMBER, Scene
from fewgpu.workshop.practice.ranks import Run
from fewgpu.workshop.practice.timeline import Span, timeline


def complete_at(scene: Scene) -> list[float]:
    """When the gradient of every layer is complete on all ranks; the last number is when the backward has ended."""
    pace = max(scene.slow, default=1.0)
    layers, times, now = range(len(scene.sizes)), [0.0] * len(scene.seconds), 0.0
    for layer in [*reversed(layers), len(scene.sizes)]:
        now += scene.seconds[layer] * pace
        times[layer] = now
    return times


def best(scene: Scene) -> tuple[float, list[Span]]:
    """The least makespan: the network begins with each gradient when it is complete and the one before has ended."""
    times, free, spans, size = complete_at(scene), 0.0, [], len(scene.rows)
    for layer in reversed(range(len(scene.sizes))):
        begin = max(free, times[layer])
        free = begin + 2 * (size - 1) * (scene.latency + scene.sizes[layer] * NUMBER / size / scene.bandwidth)
        spans.append((begin, free, str(layer)))
    return max(free, times[-1]), spans


def culprit(scene: Scene, run: Run) -> str:
    """The misconception behind a run that took longer; '' if it is no known one."""
    starts = [max(reduction.started.values()) for reduction in run.reductions]
    if not starts or min(starts) >= max(worked[-1][1] for worked in run.worked):
        return 'after-backward'
    if any(_gaps(worked) for worked in run.worked):
        return 'waits-in-hook'
    order = [_layer(scene, reduction) for reduction in run.reductions]
    if order == sorted(order) and len(order) > 1:
        return 'forward-order'
    return 'all-at-once' if min(starts) >= complete_at(scene)[0] else ''


def _gaps(worked: list[Span]) -> list[tuple[float, float]]:
    """In which a rank does not compute, though its backward goes on."""
    return [(end, begin) for (_, end), (begin, _) in zip(worked, worked[1:]) if begin > end + 1e-9]


def picture(scene: Scene, run: Run) -> str:
    """Yours above, the best below. The digits are the layers."""
    least, spans = best(scene)
    until = max(least, run.makespan)
    slowest = max(range(len(scene.rows)), key=lambda rank: run.clocks[rank])
    pace, ends, now = max(scene.slow, default=1.0), [], 0.0
    names = [str(layer) for layer in reversed(range(len(scene.sizes)))] + ['-']
    for name, layer in zip(names, [*reversed(range(len(scene.sizes))), len(scene.sizes)]):
        ends.append((now, now + scene.seconds[layer] * pace, name))
        now += scene.seconds[layer] * pace
    yours = [(*span, name) for span, name in zip(run.worked[slowest], names)]
    network = [(each.begins, each.ends, _layer(scene, each)) for each in run.reductions if each.ends]
    return timeline([('yours: backward', yours), ('       network', network),
                     ('best:  backward', ends), ('       network', spans)], until) + '\nThe digits are the layers.'


def _layer(scene: Scene, reduction: object) -> str:
    """Which layer's gradient it was, judged by what was added up; '#' if none's."""
    total = reduction.total()
    for layer, wanted in enumerate(scene.truth()[0]):
        if total.shape == wanted.shape and bool(((total - wanted).abs() < 1e-6 * wanted.abs()).all()):
            return str(layer)
    return '#'
