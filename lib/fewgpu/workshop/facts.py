"""What can be said about a schedule: its bubble and the textbook's, its stashes and versions."""

from collections.abc import Iterator, Sequence

from fewgpu.schedule import Schedule, stashes, versions_alive
from fewgpu.simulate import Costs, bubble_rate
from fewgpu.trace import Timeline


def facts(schedule: Schedule, timeline: Timeline, costs: Costs, *, plain: bool) -> Iterator[str]:
    """A sentence each; `plain` if nothing is recomputed and messages are free, as in textbooks."""
    yield (f'Makespan {timeline.makespan:g} units; bubble, the idle share of all devices, '
           f'{timeline.bubble:.1%}.')
    if schedule.name.startswith('zb-'):
        yield ('Bubble of the device that is occupied longest, from its first operation to its '
               f'last: {bubble_rate(timeline):.1%}.')
    if plain and (known := textbook(schedule, costs)):
        formula, share = known
        yield f'Textbook bubble (n devices, m micro-batches): {formula} = {share:.1%}.'
    if schedule.weights != 'latest':
        yield 'It never flushes: of a longer run, only the start and the end are such a bubble.'
    yield f'Micro-batches stashed at peak, {_by_stage(stashes(schedule))}.'
    several = any(len({op.stage for op in row}) > 1 for row in schedule.rows)
    if several or any(op.kind in 'RW' for op in schedule):
        peaks = [timeline.peak(device) for device in range(len(schedule.rows))]
        yield (f"In the picture, {_by_stage(peaks, 'device')}: all stages of a device, inputs that wait "
               f'for their recompute, and what a W still needs count as stashes, too.')
    versions = versions_alive(schedule)
    if max(versions) > 1:
        yield f'Weight versions kept at peak, {_by_stage(versions)}.'


def textbook(schedule: Schedule, costs: Costs) -> tuple[str, float] | None:
    """The published formula of the bubble, and its value; None where it does not hold.

    GPipe: arXiv 1811.06965, section 2.3. 1F1B and interleaved: arXiv 2104.04473, section 2.2, there
    as a share of the work, here of the step. Zero bubble: arXiv 2401.10241, Table 2;
    it takes a W that is no longer than F, and as many micro-batches as are in flight. PipeDream and
    2BW idle only at the start and the end: once 1F1B's bubble, however long they run. GEMS: see
    `fewgpu.schedule.gems`.
    """
    n, m = len(schedule.rows), schedule.micro_batches
    v = schedule.stages // n
    if schedule.name.startswith('zb-'):
        late = 1 if schedule.name == 'zb-h1' else 2
        f, i, w = (costs.of(kind, 0) for kind in 'FIW')
        if w > f or m < late * (n - 1) + 1:
            return None
        idle = (n - 1) * max(f + i - late * w, 0.0)
        put_off = 'W' if late == 1 else '2W'
        return (f'x / (x + m(F + I + W)) with x = (n - 1)(F + I - {put_off})',
                idle / (idle + m * (f + i + w)))
    if schedule.name == 'v-shape':   # found by a search, not by a formula
        return None
    if schedule.name == 'interleaved':
        return '(n - 1) / (v m + n - 1)', (n - 1) / (v * m + n - 1)
    if schedule.name == 'gems':
        f, b = costs.of('F', 0), costs.of('B', 0)
        step = n * (f + b) + (m - 1) * max(n * b + f, n * f + b)
        return '1 - m(F + B) / (n(F + B) + (m - 1) max(nB + F, nF + B))', 1 - m * (f + b) / step
    return '(n - 1) / (m + n - 1)', (n - 1) / (m + n - 1)


def _by_stage(figures: Sequence[int], what: str = 'stage') -> str:
    if len(set(figures)) == 1:
        return f'on every {what}: {figures[0]}'
    return f"{what} 0 to {len(figures) - 1}: {', '.join(map(str, figures))}"
