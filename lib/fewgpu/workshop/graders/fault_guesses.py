"""What goes wrong in reading the record of a run: for each misconception, the answer that it would give."""

from collections.abc import Callable
from typing import Any

from fewgpu.workshop.grading.law import Like, Suspect
from fewgpu.workshop.practice.fault_cases import Case
from fewgpu.workshop.practice.faults import Record, stages


def busy(record: Record) -> list[float]:
    """Seconds that each device has computed."""
    return [sum(span.end - span.start for span in spans) for spans in record.spans]


def by_profile(record: Record, backward: float = 2.0) -> list[float]:
    """Seconds that the profile says for what each device has run."""
    return [sum(layer.seconds for layer in stage) / record.setting.chunks * sum(
        1.0 if span.kind == 'F' else backward for span in spans)
        for stage, spans in zip(stages(record.setting.balance, record.layers), record.spans)]


def ratios(some: list[float], others: list[float]) -> list[float]:
    return [one / other for one, other in zip(some, others)]


def slowness_guesses() -> list[Suspect]:
    def from_record(name: str, guess: Callable[[Record], list[float]]) -> Suspect:
        return Suspect(name, lambda case: guess(case.record))

    def true(record: Record) -> list[float]:
        return ratios(busy(record), by_profile(record))

    def rest(record: Record) -> list[float]:   # the profile of all that should have run
        whole = [sum(1.0 if cell[0] == 'F' else 2.0 for cell in row) for row in record.rows]
        return [sum(layer.seconds for layer in stage) / record.setting.chunks * units
                for stage, units in zip(stages(record.setting.balance, record.layers), whole)]

    def counts(record: Record) -> list[int]:
        return list(record.setting.balance)

    def operations(record: Record) -> list[int]:
        return [len(spans) for spans in record.spans]

    def step(record: Record) -> list[float]:   # the profile of a whole mini-batch, one forward
        return [sum(layer.seconds for layer in stage) for stage in stages(record.setting.balance, record.layers)]

    def first_layers(record: Record) -> list[float]:
        return [sum(layer.seconds for layer in record.layers[:count]) * part / whole for count, part, whole in zip(
            counts(record), by_profile(record), step(record))]

    def until(record: Record, start: bool) -> list[float]:
        return [spans[-1].end - (spans[0].start if start else 0.0) for spans in record.spans]

    return [
        from_record('busy-seconds', busy),
        from_record('layers-alike', lambda record: ratios(busy(record), counts(record))),
        from_record('layers-alike', lambda record: ratios(ratios(busy(record), counts(record)), operations(record))),
        from_record('layers-alike', lambda record: ratios(busy(record), operations(record))),
        from_record('waits-counted', lambda record: ratios(until(record, True), by_profile(record))),
        from_record('waits-counted', lambda record: ratios(until(record, False), by_profile(record))),
        from_record('waits-counted', lambda record: ratios([record.seconds] * len(record.spans), by_profile(record))),
        from_record('backward-as-forward', lambda record: ratios(busy(record), by_profile(record, 1.0))),
        from_record('backward-left-out', lambda record: ratios(busy(record), by_profile(record, 0.0))),
        from_record('all-has-run', lambda record: ratios(busy(record), rest(record))),
        from_record('all-has-run', lambda record: ratios(busy(record), [3 * each for each in step(record)])),
        from_record('whole-mini-batch', lambda record: [each / record.setting.chunks for each in true(record)]),
        from_record('whole-mini-batch', lambda record: ratios(busy(record), step(record))),
        from_record('same-first-layer', lambda record: ratios(busy(record), first_layers(record))),
        from_record('to-the-fastest', lambda record: [each / min(true(record)) for each in true(record)]),
        from_record('upside-down', lambda record: [1 / each for each in true(record)]),
    ]


def link_guesses() -> list[Suspect]:
    def by_link(name: str, guess: Callable[[Any, float, float], float]) -> Suspect:
        """`guess(messages, their seconds, their bytes)`."""
        return Suspect(name, lambda case: [guess(link, sum(each.end - each.start for each in link),
                                                 sum(each.bytes for each in link)) for link in case.record.messages])

    def fastest(case: Case) -> list[float]:
        paces = [sum(each.end - each.start for each in link) / sum(each.bytes for each in link)
                 for link in case.record.messages]
        return [pace / min(paces) for pace in paces]

    return [
        by_link('message-seconds', lambda link, seconds, size: seconds),
        by_link('message-seconds', lambda link, seconds, size: seconds / len(link)),
        by_link('message-seconds', lambda link, seconds, size: max(each.end - each.start for each in link)),
        by_link('upside-down', lambda link, seconds, size: size / seconds),
        by_link('waits-counted', lambda link, seconds, size: (max(each.end for each in link) - link[0].start) / size),
        by_link('waits-counted', lambda link, seconds, size: max(each.end for each in link) / size),
        by_link('one-messages-bytes', lambda link, seconds, size: seconds / link[0].bytes),
        Suspect('to-the-fastest', fastest),
    ]


def fault_guesses() -> list[Suspect]:
    """For `diagnose`, whose answers are lists [fault, where]."""
    return [*_pair_guesses(), *_certain_guesses(), *_time_guesses()]


def _pair_guesses() -> list[Suspect]:
    """The fault is found, and told in another way."""
    return [
        Suspect('fault-only', lambda case: case.fault),
        Suspect('swapped', lambda case: [case.where, case.fault]),
        Suspect('from-one', lambda case: [case.fault, None if case.where is None else case.where + 1]),
        Suspect('later-end', lambda case: _later(case, 1) if case.fault in ('slow link', 'deadlock')
                else [case.fault, case.where]),
        _instead('later-end', 'slow link', lambda case: _later(case, 1)),
        _instead('later-end', 'deadlock', lambda case: _later(case, 1)),
    ]


def _certain_guesses() -> list[Suspect]:
    """Of what `error` and the norms tell, whatever else there is."""
    return [
        Suspect('norms-of-a-failure', _raises),
        _instead('largest-peak', 'out of memory', lambda case: [case.fault, _most(case.record.peak)]),
        _fits('largest-peak', lambda case, fault, where: fault == 'out of memory' != case.fault),
        _instead('who-waits', 'deadlock', lambda case: [case.fault, _least_done(case.record.spans)]),
        _instead('who-waits', 'deadlock', lambda case: [case.fault, _least_done(case.record.spans[:-1])]),
        _fits('who-waits', lambda case, fault, where: fault == case.fault == 'deadlock'),
        _fits('only-large', lambda case, fault, where: case.fault == 'loss scale' != fault
              and case.record.norms[0] < case.record.plain_norms[0]),
        _fits('losses-fall', lambda case, fault, where: case.fault == 'loss scale' != fault),
    ]


def _time_guesses() -> list[Suspect]:
    """Of devices, links and stages, by their seconds."""
    return [
        _instead('average-hides', 'straggler', _mean_hides),
        _fits('all-slower', lambda case, fault, where: fault == 'straggler' != case.fault
              and min(case.machine.slowness) > 1.3 or fault != 'straggler' == case.fault
              and max(case.machine.slowness) < 1.6 or fault == 'straggler' == case.fault
              and min(case.machine.slowness) > 1.3 and where == 0 != case.where),
        _fits('idle-blamed', lambda case, fault, where: case.fault in ('straggler', 'imbalance')
              and fault in ('straggler', 'imbalance') and where == busy(case.record).index(min(busy(case.record)))),
        _fits('busy-is-slow', lambda case, fault, where: fault == 'straggler' != case.fault
              and where == _most(busy(case.record))),
        _fits('slow-is-work', lambda case, fault, where: fault == 'imbalance' != case.fault
              and where == _most(busy(case.record)) or _unseen(case, fault, 'straggler', busy(case.record))),
        _fits('long-messages', lambda case, fault, where: fault == 'slow link'
              and where == _most(_message_seconds(case))),
        _fits('more-layers', lambda case, fault, where: fault == 'imbalance'
              and where == _most(case.setting.balance) and [fault, where] != [case.fault, case.where]
              or _unseen(case, fault, 'imbalance', case.setting.balance)),
        _fits('small-differences', lambda case, fault, where: fault != case.fault and (
            fault == 'straggler' and where == _most(case.machine.slowness)
            or fault == 'slow link' and where == _most(case.machine.seconds_a_byte))),
        _fits('bubble', lambda case, fault, where: case.fault == 'healthy' != fault),
    ]


def _instead(name: str, fault: str, guess: Callable[[Case], Any]) -> Suspect:
    """The truth, but another answer where there is that fault."""
    return Suspect(name, lambda case: guess(case) if case.fault == fault else [case.fault, case.where])


def _fits(name: str, fits: Callable[[Case, str, Any], bool]) -> Suspect:
    """Any answer for which `fits(case, fault, where)`."""
    return Suspect(name, lambda case: Like(lambda got: isinstance(got, list) and len(got) == 2
                                           and bool(fits(case, *got))))


def _least_done(spans: Any) -> int:
    return min(range(len(spans)), key=lambda device: len(spans[device]))


def _raises(case: Case) -> Any:
    if case.record.error:
        raise IndexError
    return [case.fault, case.where]


def _mean_hides(case: Case) -> Any:
    slow = case.machine.slowness
    return ['healthy', None] if max(slow) < 1.5 * sum(slow) / len(slow) else [case.fault, case.where]


def _unseen(case: Case, said: str, fault: str, numbers: Any) -> bool:
    """Is the fault called healthy, and do these numbers, which stand for the right ones, not show it?"""
    return case.fault == fault and said == 'healthy' and max(numbers) < 1.5 * sum(numbers) / len(numbers)


def _most(numbers: Any) -> int:
    return max(range(len(numbers)), key=list(numbers).__getitem__)


def _message_seconds(case: Case) -> list[float]:
    return [sum(each.end - each.start for each in link) for link in case.record.messages]


def _later(case: Case, where: int) -> Any:
    return [case.fault, where if case.where is None else where + case.where]
