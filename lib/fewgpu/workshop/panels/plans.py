"""Which way to train a model on a cluster: all of them, the fastest first, and why the others lose."""

from collections import Counter
from collections.abc import Sequence
from textwrap import fill, wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewgpu import plot
from fewgpu.planner.cluster import preset
from fewgpu.planner.known import known
from fewgpu.planner.search import fastest_first
from fewgpu.planner.ways import Prediction, Task
from fewgpu.plot.looks import GREY, label_rows, row_end, say, title_of
from fewgpu.workshop.plan import described, speed
from fewgpu.workshop.plan_picture import KINDS, WIDTH, shares

CLUSTER = 'v100-16'   # whose devices and servers these are; memory and network are chosen
LETTERS, LINE = 66, 0.135   # of a line of a reason: letters, and inches of its height
BESIDE = 94           # points between the end of a bar and its reason
ACROSS = 148          # letters of a line above the picture

#: What takes a loser's time, by the label of the picture.
CAUSES = {
    'recompute': 'recompute', 'bubble, uneven stages': 'bubbles', 'stage link': 'messages between stages',
    'data link': 'gradients of replicas', 'tensor link': 'exchanges of tensor ranks',
    'host, disk': 'host and disk', 'unused devices': 'devices without work'}
NO_ROOM, TURNS, NOTHING = 'memory', 'taking turns', 'next to nothing'


def ranking(model: str, gpus: int, memory: float, link: float) -> list[Prediction]:
    """All ways to train a model that the planner knows by name, with its usual batch, the fastest first.

    On `gpus` V100s, eight a server, of `memory` GB each, with a network of `link` Gbit/s a server. Those that do not
    fit come last. Raises ValueError for a model or a cluster that cannot be.
    """
    network = known(model)
    place = preset(CLUSTER, devices=gpus, memory=memory * 1e9, between=link / 8 * 1e9)
    return fastest_first(Task(network, place, network.batch))


def cause(one: Prediction) -> str:
    """What a way loses most to: memory if it does not fit, else what its devices do longest instead of computing."""
    if not one.fits:
        return NO_ROOM
    if one.knobs.schedule == 'one at a time' and one.knobs.stages > 1:
        return TURNS
    used = one.knobs.devices / one.task.cluster.devices
    parts = {part: used * seconds / one.step for part, seconds in one.parts.items()} | {'unused': 1.0 - used}
    lost = {look.label: sum(parts.get(name, 0.0) for name in names) for look, names in KINDS.items()
            if look.label in CAUSES}
    most = max(lost, key=lost.get)
    return CAUSES[most] if lost[most] > 0.005 else NOTHING


def draw(model: str, gpus: int, memory: float, link: float) -> tuple[Figure, str]:
    """The ranking, with a reason for every way, and a line that sums them up. Arguments as in `ranking`."""
    ranked = ranking(model, gpus, memory, link)
    reasons = [_reason(one, first=one is ranked[0]) for one in ranked]
    row = 0.1 + LINE * max(map(len, reasons))
    figure = plot.Picture(figsize=(WIDTH, 1.4 + row * len(ranked)), layout='constrained')
    _rows(figure.add_subplot(), ranked, reasons)
    return figure, _line(ranked)


def _reason(one: Prediction, first: bool) -> list[str]:
    """In lines: the knobs of the fastest, and what the others lose to; recompute is not explained."""
    said = one.why.partition('; without recompute')[0]
    return wrap(f'{described(one)}: {said}' if first and one.fits else said, LETTERS)


def _rows(ax: Axes, ranked: Sequence[Prediction], reasons: Sequence[Sequence[str]]) -> None:
    fitting = [one for one in ranked if one.fits]
    if fitting:
        shares(fitting, ax)
    else:
        task = ranked[0].task
        title_of(ax, f'{task.model.name} on {task.cluster.devices} devices: nothing fits')
        ax.set_xlim(0.0, 1.0)
        ax.set_xticks([])
    label_rows(ax, [one.name for one in ranked])
    for row, (one, reason) in enumerate(zip(ranked, reasons)):
        if not one.fits:
            row_end(ax, 1.0, row, 'does not fit')
            say(ax, f'{one.name}: does not fit')
        ax.annotate('\n'.join(reason), (1.0, row), (BESIDE, 0), textcoords='offset points', va='center', fontsize=8,
                    color=GREY, annotation_clip=False)


def _line(ranked: Sequence[Prediction]) -> str:
    first, *others = ranked
    if not first.fits:
        return 'No way fits: take more devices, more memory or a smaller model.'
    causes = Counter(map(cause, others)).most_common()
    lose = ', '.join(f'{what} ({count})' for what, count in causes)
    fastest = f'Fastest: {first.name}, {speed(first)} samples/s.'
    return fill(f'{fastest} Others lose to: {lose}.', ACROSS) if others else fastest
