"""The picture of a plan: where the time of every way goes, and the schedule of the fastest."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fewgpu import plot
from fewgpu.planner.ways import Prediction, Task, times
from fewgpu.plot.looks import Look, add_patch, label_rows, row_end, say, title_of
from fewgpu.schedule import SCHEDULES, with_recompute
from fewgpu.schedule.two_bw import two_bw
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import Timeline
from fewgpu.workshop.plan import speed

MOST_STAGES, MOST_CHUNKS = 16, 32   # of a timeline that can be read
WIDTH = 11.0                        # inches

#: What a device does, and the parts of a prediction that it sums up.
KINDS = {
    Look('computes', '#1f5583', '#10324f'): ('compute',),
    Look('recompute', '#ffe9b8', '#d59a1e', '/////'): ('recompute',),
    Look('bubble, uneven stages', '#d9d9d9', '#8a8a8a'): ('bubble', 'uneven stages'),
    Look('stage link', '#b4d2ea', '#6d9cc0', '\\\\\\\\'): ('stage link',),
    Look('data link', '#3f8f8b', '#1d5653', '....'): ('data link',),
    Look('tensor link', '#e7c9e0', '#a0508b', 'xxxx'): ('tensor link',),
    Look('host, disk', '#c8781e', '#7a4510', '++++'): ('host link', 'disk', 'update by hosts'),
    Look('unused devices', '#ffffff', '#8a8a8a'): ('unused',),
}


def picture(ranked: list[Prediction]) -> Figure:
    """Bars of all ways that fit; below, the fastest one's schedule if it is a pipeline that can be drawn."""
    fitting = [one for one in ranked if one.fits]
    schedule = timeline(fitting[0])
    height = 1.4 + 0.3 * len(fitting)
    if schedule is None:
        figure = plot.Picture(figsize=(WIDTH, height), layout='constrained')
        shares(fitting, figure.add_subplot())
        return figure
    below = 1.2 + 0.32 * len(schedule.rows)
    figure = plot.Picture(figsize=(WIDTH, height + below), layout='constrained')
    above, under = figure.subplots(2, height_ratios=[height, below])
    shares(fitting, above)
    plot.timeline(schedule, under, title=_title(fitting[0]))
    return figure


def shares(fitting: list[Prediction], ax: Axes) -> None:
    """A bar a way: all its devices' time, by what they do; its speed at the end."""
    seen = []
    for row, one in enumerate(fitting):
        used = one.knobs.devices / one.task.cluster.devices
        parts = {part: used * seconds / one.step for part, seconds in one.parts.items()} | {'unused': 1.0 - used}
        left = 0.0
        for look, names in KINDS.items():
            width = sum(parts.get(name, 0.0) for name in names)
            if width > 1e-3:
                add_patch(ax, look, left, row, width, 0.7)
                seen.append(look)
            left += width
        row_end(ax, 1.0, row, f'{speed(one)} samples/s')
        say(ax, f'{one.name}: {speed(one)} samples/s, {one.busy:.0%} busy')
    label_rows(ax, [one.name for one in fitting])
    ax.set_xlim(0.0, 1.0)
    ax.xaxis.set_major_formatter(lambda share, _: f'{share:.0%}')
    task = fitting[0].task
    title_of(ax, f"{task.model.name} on {task.cluster.devices} devices: all devices' time, predicted", pad=34)
    handles = [Patch(facecolor=look.face, edgecolor=look.edge, hatch=look.hatch, linewidth=0.4, label=look.label)
               for look in KINDS if look in seen]
    ax.legend(handles=handles, loc='lower left', bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=4, fontsize=8,
              borderaxespad=0.2, borderpad=0.0, handlelength=1.4)


def timeline(one: Prediction) -> Timeline | None:
    """A step of the winner as the simulator sees it, of its first micro-batches if they are many; None if
    it is no pipeline, or one with too many stages."""
    knobs, task = one.knobs, one.task
    if not 1 < knobs.stages <= MOST_STAGES or knobs.schedule == 'one at a time':
        return None
    if knobs.schedule == '2bw':
        schedule = two_bw(knobs.stages, drawn(one), update_every=drawn(one))
    else:
        schedule = SCHEDULES[knobs.schedule](knobs.stages, drawn(one))
    if knobs.recompute != 'never':
        schedule = with_recompute(schedule, 'always')
    return simulate(schedule, costs(task, one))


def drawn(one: Prediction) -> int:
    """How many micro-batches are drawn."""
    return min(one.knobs.chunks(one.task.batch), MOST_CHUNKS)


def costs(task: Task, one: Prediction) -> Costs:
    """What operations cost in the simulator: seconds, and bytes of messages."""
    knobs = one.knobs
    stages = task.model.stages(knobs.stages, knobs.tensor)
    every = [times(task, knobs, stage) for stage in stages]
    number = knobs.rows * task.precision.number / knobs.tensor
    message = [task.cluster.send(number * stage.crossing, knobs.stages, knobs.tensor * knobs.replicas)
               for stage in stages[:-1]]
    return Costs(F=[each.forward for each in every], B=[each.backward for each in every],
                 R=[each.again for each in every], bandwidth=1.0, message=message)   # seconds of a message


def _title(one: Prediction) -> str:
    chunks, shown = one.knobs.chunks(one.task.batch), drawn(one)
    part = '' if shown == chunks else f', {shown} of {chunks} micro-batches'
    if one.knobs.schedule == '2bw':   # one update is drawn, from an empty pipeline to an empty one
        part += ', drained (the bars: never)'
    return f'{"A step" if one.knobs.devices == one.knobs.stages else "One pipeline"} of {one.name}{part}'
