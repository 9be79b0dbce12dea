"""What to change first: the step is timed again with one thing changed, and the change that gains most comes first.

Each factor says how many times as fast the step would be, were that change perfect: a bound, not a promise.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from statistics import median, median_low
from typing import NamedTuple

from fewgpu.causes import NONE, Causes
from fewgpu.costs import Costs
from fewgpu.replay import Change, Replay
from fewgpu.schedule import with_recompute
from fewgpu.schedule.named import schedule_maker
from fewgpu.simulate import simulate
from fewgpu.trace import EXCHANGE, WAITS, Timeline
from fewgpu.trace_files import AVERAGING

WORTH = 1.005        # a gain below half a percent is none
SLOWER = 1.1         # a device that takes so much longer than the others with the same stages is a straggler
MOST = 200_000       # operations of a schedule that is simulated


class Advice(NamedTuple):
    """One change: how many times as fast the step would be, what is changed, and how one does that."""

    factor: float
    change: str
    how: str


def advise(causes: Causes) -> list[Advice]:
    """Changes that gain anything, the best one first."""
    replay = Replay(causes)
    now = replay.makespan()
    if now <= 0.0:
        return []
    found = [Advice(now / max(replay.makespan(change), now / 1000), *words) for change, *words in _changes(replay)]
    found += _more_micro_batches(causes)
    return sorted((one for one in found if one.factor >= WORTH), key=lambda one: -one.factor)


def _changes(replay: Replay) -> Iterator[tuple[Change, str, str]]:
    yield from _equal(replay)
    yield from _stragglers(replay)
    yield from _steady(replay)
    yield from _without_recompute(replay)
    averages = replay.causes.merged.schedule['name'] == AVERAGING
    yield (Change(flight=0.0), 'an infinitely fast link',
           'send less (larger buckets, a smaller dtype), or hide it behind the backward' if averages else
           'cut where activations are small, keep neighbours on one machine, or use a faster link')
    if not averages:
        yield (Change(handling=0.0), 'messages that need no packing',
               'fewer and larger messages: fewer micro-batches, or cut where activations are small')
    yield Change(lost=0.0), 'no time lost between operations', 'larger micro-batches, and a core for every rank'


def _computes(replay: Replay, number: int) -> bool:
    """Is an operation computation alone? (In one that meets others the device waits for them.)"""
    return replay.causes.spans[number].op.kind not in (*WAITS, EXCHANGE) and number not in replay.causes.meeting


def _work(replay: Replay) -> dict[int, float]:
    """Seconds that every row computed."""
    work: dict[int, float] = defaultdict(float)
    for number, seconds in enumerate(replay.seconds):
        if _computes(replay, number):
            work[replay.causes.rows[number]] += seconds
    return work


def _equal(replay: Replay) -> Iterator[tuple[Change, str, str]]:
    """Each kind of operation takes the same on all stages of a pipeline (or on all ranks that average)."""
    causes, merged = replay.causes, replay.causes.merged
    averages = merged.schedule['name'] == AVERAGING
    taken: dict[tuple, list[float]] = defaultdict(list)
    keys = []
    for number, span in enumerate(causes.spans):
        row = causes.rows[number]
        together = None if averages else (merged.pipelines[row], merged.parts[row])
        keys.append((together, span.op.kind, row, span.op.stage) if _computes(replay, number) else None)
        if keys[-1]:
            taken[keys[-1]].append(span.seconds)
    means = {key: sum(each) / len(each) for key, each in taken.items()}
    alike: dict[tuple, list[float]] = defaultdict(list)
    for key, seconds in means.items():
        alike[key[:2]].append(seconds)
    factors = {key: sum(alike[key[:2]]) / len(alike[key[:2]]) / seconds for key, seconds in means.items() if seconds}
    yield (Change([seconds * factors.get(key, 1.0) for seconds, key in zip(replay.seconds, keys)]),
           'equal ranks' if averages else 'equal stages',
           'give slower ranks fewer rows, or find out why they are slower' if averages else
           'another balance: see fewgpu.balance')


def _stragglers(replay: Replay) -> Iterator[tuple[Change, str, str]]:
    """Devices that are slower than others which hold the same stages (in other replicas)."""
    causes, merged, work = replay.causes, replay.causes.merged, _work(replay)
    alike = defaultdict(list)
    for row in work:
        stages = frozenset(span.op.stage for span in merged.timeline.rows[row])
        alike[stages, merged.parts[row]].append(row)
    for rows in alike.values():
        usual = median_low(work[row] for row in rows)
        for row in rows if len(rows) > 1 else ():
            if usual > 0 and work[row] > SLOWER * usual:
                name = merged.timeline.names[row]
                yield (Change([seconds * usual / work[row] if causes.rows[number] == row and _computes(replay, number)
                               else seconds for number, seconds in enumerate(replay.seconds)]),
                       f'{name} as fast as others that do the same work',
                       f'it computed {work[row] / usual:.2f}x as long: give it less, or look at what else runs there')


def _steady(replay: Replay) -> Iterator[tuple[Change, str, str]]:
    """No operation longer than the usual one of its kind."""
    causes, usual = replay.causes, defaultdict(list)
    for number, span in enumerate(causes.spans):
        usual[causes.rows[number], span.op.kind, span.op.stage].append(span.seconds)
    middle = {key: median(each) for key, each in usual.items()}
    yield (Change([min(seconds, middle[causes.rows[number], op.kind, op.stage]) if _computes(replay, number)
                   else seconds for number, (seconds, (op, *_)) in enumerate(zip(replay.seconds, causes.spans))]),
           'no operation slower than the median of its like',
           'something disturbs the devices: other programs, the first use of a kernel, memory that runs short')


def _without_recompute(replay: Replay) -> Iterator[tuple[Change, str, str]]:
    spans = replay.causes.spans
    if any(span.op.kind == 'R' for span in spans):
        yield (Change([0.0 if span.op.kind == 'R' else seconds for span, seconds in zip(spans, replay.seconds)]),
               'no recompute', "checkpoint='never', if the memory allows it")


def _more_micro_batches(causes: Causes) -> Iterator[Advice]:
    """The same rows in twice or half as many micro-batches: simulated with the median costs."""
    merged = causes.merged
    name, stages, count = (merged.schedule[part] for part in ('name', 'stages', 'micro_batches'))
    rows = [row for row, members in enumerate(merged.pipelines) if members == merged.pipelines[0]
            and merged.parts[row] == merged.parts[0]]
    timeline = Timeline(tuple(merged.timeline.rows[row] for row in rows), ('',) * len(rows))
    kinds = Counter(span.op.kind for row in timeline.rows for span in row)
    trained = kinds['B'] + kinds['I']
    if name == AVERAGING or len(rows) < 2 or not trained or 4 * max(trained, stages * count) > MOST:
        return
    again = 'never' if not kinds['R'] else 'always' if kinds['R'] == trained else 'except_last'
    latency = _latency(causes)

    def seconds(times: Fraction) -> float:
        plan = with_recompute(schedule_maker(name, stages, len(rows))(int(count * times)), again)
        if plan.weights != 'latest' or plan.update_every is not None:
            raise ValueError('it does not flush: more micro-batches are more steps')
        costs = Costs.measured(timeline)
        each = {kind: [float(cost or 0.0) / times for cost in getattr(costs, kind)] for kind in 'FBIWR'}
        return simulate(plan, Costs(**each, latency=latency)).makespan

    for times, how in ((Fraction(2), 'more chunks, if half as many rows still keep a device busy'),
                       (Fraction(1, 2), 'fewer chunks: messages cost more here than the bubble')):
        if count * times >= 1 and (count * times).denominator == 1:
            with suppress(ValueError, TypeError):   # a schedule of the learner's, or one that cannot have so many
                yield Advice(seconds(Fraction(1)) / seconds(times),
                             f'{count * times} micro-batches instead of {count}', how)


def _latency(causes: Causes) -> float:
    """The median time that a message was under way."""
    flights = [causes.arrived[number] - causes.spans[causes.sender[number]].start
               for number, span in enumerate(causes.spans)
               if span.op.kind == 'recv' and causes.sender[number] != NONE and causes.arrived[number] > span.start]
    return max(median(flights), 0.0) if flights else 0.0

