"""Which device, or which link, is slower than it should be: measured timelines against expected costs.

    pipeline.step(x, y); timelines = [pipeline.trace]          # better: some steps, to see past what disturbs one
    print(slow_device(timelines, Costs(F=1.0, B=2.0)))         # only the proportions of stages and kinds count
    print(slow_link(timelines, Costs(message=65536, bandwidth=1e8, latency=1e-3)))

Who waits is not who is slow: with one slow device all others idle. So only operations are looked at, and of messages
only those for which their receiver waited. The fastest one of a kind counts: whatever else runs on a machine makes
some slower, and none faster.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fewgpu.schedule import ACTIVATION, GRADIENT
from fewgpu.simulate import Costs
from fewgpu.trace import WAITS, Timeline

NOISE = 2e-3    # seconds in which a thread may notice that a message has come
CLEARLY = 2.0   # times slower than the others, or than it should be: less may be noise


def slow_device(timelines: Iterable[Timeline], costs: Costs) -> str:
    """The device that takes longer than its share, in a sentence; '' if there is none.

    `costs` say what an operation of each stage should take; only their proportions count, as all devices may be
    slower or faster than whatever they were measured on. A device is slow if, for the same, it takes CLEARLY times
    as long as the fastest. On ranks take `gather_trace()`: a rank's own `trace` has one device only.
    """
    timelines = list(timelines)
    slowness = slownesses(timelines, costs)
    if not slowness:
        return ''
    worst, best = max(slowness, key=slowness.get), min(slowness.values())
    if slowness[worst] < CLEARLY * best:
        return ''
    first = timelines[0]
    stages = sorted({span.op.stage for span in first.rows[worst]})
    times = slowness[worst] / best
    return (f'{first.names[worst]} takes {times:.1f} times its share: for the operations of stage '
            f'{", ".join(map(str, stages))} {_ms(slowness[worst], costs, stages)}, where the fastest device would take '
            f'{_ms(best, costs, stages)}: look what else runs there and how fast its clock is, or give it fewer layers')


def slownesses(timelines: Sequence[Timeline], costs: Costs) -> dict[int, float]:
    """By device: its fastest operations of every kind and stage, over what they should take. Left out are devices
    whose operations take, or should take, no time."""
    fastest: dict[int, dict[tuple[str, int], float]] = defaultdict(dict)
    for timeline in timelines:
        for device, row in enumerate(timeline.rows):
            for span in row:
                key = span.op.kind, span.op.stage
                if key[0] not in (*WAITS, 'U'):
                    fastest[device][key] = min(span.seconds, fastest[device].get(key, span.seconds))
    taken = {device: (sum(spans.values()), sum(costs.of(*key) for key in spans)) for device, spans in fastest.items()}
    return {device: seconds / expected for device, (seconds, expected) in taken.items() if seconds and expected}


def _ms(slowness: float, costs: Costs, stages: Sequence[int]) -> str:
    return ' and '.join(f'{name} {slowness * sum(costs.of(kind, stage) for stage in stages) * 1e3:.3g} ms'
                        for kind, name in (('F', 'forward'), ('B', 'backward')))


def slow_link(timelines: Iterable[Timeline], costs: Costs) -> str:
    """The link whose messages take longer than latency and bytes / bandwidth of `costs`, in a sentence; '' if none.

    `costs.message` has the bytes between stages. A link is slow if its fastest message takes CLEARLY times as long as
    it should, and NOISE seconds more. All devices must have one clock: across machines merge saved traces first
    (`fewgpu.trace_merge.load(...).timeline`).
    """
    found = []
    for (source, stage), seconds in transits(timelines).items():
        number = costs.of('message', min(source, stage))
        expected = costs.latency + number / costs.bandwidth
        if seconds > CLEARLY * expected + NOISE:
            found.append((seconds / (expected or 1e-9), source, stage, seconds, expected, number))
    if not found:
        return ''
    _, source, stage, seconds, expected, number = max(found)
    what = 'activations' if source < stage else 'gradients'
    return (f'the link between stages {min(source, stage)} and {max(source, stage)} is slow: {what} of {number:,.0f} '
            f'bytes from stage {source} to stage {stage} take {seconds * 1e3:.3g} ms, where bytes over bandwidth and '
            f'latency say {expected * 1e3:.3g} ms: look at the cable, the switch, who else sends there, or cut the '
            f'model where less is sent')


def transits(timelines: Iterable[Timeline]) -> dict[tuple[int, int], float]:
    """Seconds from the send to the end of the receive, by (source, stage) of the message; the fastest one counts.

    Left out are messages that were there before their receiver asked for them, or that left while the one before was
    on its way: they say how long somebody else took.
    """
    fastest: dict[tuple[int, int], float] = {}
    for timeline in timelines:
        sent = {span.op.message: span for row in timeline.rows for span in row if span.op.kind == 'send'}
        free: dict[tuple[int, int], float] = defaultdict(float)   # when the message before has arrived
        for span in (span for row in timeline.rows for span in row if span.op.kind == 'recv'):
            message, leaves = span.op.message, sent.get(span.op.message)
            if leaves is None or message.what not in (ACTIVATION, GRADIENT):
                continue
            link = message.source, message.stage
            if span.start <= leaves.end and free[link] <= leaves.end:
                fastest[link] = min(span.end - leaves.end, fastest.get(link, span.end - leaves.end))
            free[link] = span.end
    return fastest
