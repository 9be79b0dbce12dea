"""A slow device or link is named from timelines, whichever it is; and none where all is as it should be."""

import random

import pytest

from fewgpu.schedule import gpipe, one_f_one_b, with_messages
from fewgpu.simulate import Costs, simulate
from fewgpu.slow import slow_device, slow_link, slownesses, transits
from fewgpu.trace import Span, Timeline


class Machine:
    """A pipeline in virtual time whose costs are known, on devices of any speed, disturbed at random."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.stages, chunks = draw.randint(2, 5), draw.randint(3, 8)
        self.schedule = with_messages(draw.choice([gpipe, one_f_one_b])(self.stages, chunks))
        work = [draw.uniform(0.5, 2.0) for _ in range(self.stages)]
        self.costs = Costs(F=work, B=[2 * each for each in work], latency=2e-3, bandwidth=1e8,
                           message=[draw.choice([2e5, 1e6]) for _ in range(self.stages - 1)])
        self.unit = draw.choice([0.01, 1.0])   # seconds of a unit of work

    def timelines(self, slower: dict[int, float], links: dict[int, float], steps: int = 4) -> list[Timeline]:
        messages = [size * links.get(number, 1.0) for number, size in enumerate(self.costs.message)]
        seconds = {kind: [self.unit * value * slower.get(stage, 1.0) for stage, value in enumerate(
            getattr(self.costs, kind))] for kind in 'FB'}
        real = Costs(**seconds, latency=2e-3, bandwidth=1e8, message=messages)
        return [simulate(self.schedule, real) for _ in range(steps)]

    def disturbed(self, timeline: Timeline) -> Timeline:
        """Some operations take longer, as if another program had the core."""
        return Timeline(tuple(tuple(Span(span.op, span.start, span.end + span.seconds * 9 * (self.draw.random() < 0.2))
                                    if span.op.kind in 'FB' else span for span in row) for row in timeline.rows),
                        timeline.names)


@pytest.fixture(params=range(20))
def machine(request) -> Machine:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    return Machine(seed)


def test_the_device_that_is_slow_is_named_with_its_factor(machine: Machine) -> None:
    slow, times = machine.draw.randrange(machine.stages), machine.draw.uniform(2.2, 6.0)
    said = slow_device(machine.timelines({slow: times}, {}), machine.costs)
    assert said.startswith(f'device {slow} takes {times:.1f} times its share') and f'of stage {slow} ' in said
    assert slow_link(machine.timelines({slow: times}, {}), machine.costs) == ''


def test_the_link_that_is_slow_is_named_with_both_its_times(machine: Machine) -> None:
    slow, times = machine.draw.randrange(machine.stages - 1), machine.draw.uniform(8.0, 30.0)
    timelines = machine.timelines({}, {slow: times})
    said, size = slow_link(timelines, machine.costs), machine.costs.message[slow]
    assert f'between stages {slow} and {slow + 1} is slow' in said and f'{size:,.0f} bytes' in said
    assert f'say {(2e-3 + size / 1e8) * 1e3:.3g} ms' in said
    assert f'take {(2e-3 + size * times / 1e8) * 1e3:.3g} ms' in said
    assert slow_device(timelines, machine.costs) == ''


def test_where_all_is_as_it_should_be_nothing_is_said(machine: Machine) -> None:
    """All devices slower alike is no fault, and some operations that were disturbed are none either."""
    pace = machine.draw.uniform(0.2, 5.0)
    even = {stage: pace * machine.draw.uniform(1.0, 1.3) for stage in range(machine.stages)}
    timelines = machine.timelines(even, {}, steps=6)
    assert slow_device(timelines, machine.costs) == slow_link(timelines, machine.costs) == ''
    assert slow_device(map(machine.disturbed, timelines), machine.costs) == ''


def test_messages_that_wait_for_a_busy_receiver_say_nothing_of_their_link(machine: Machine) -> None:
    for (source, stage), seconds in transits(machine.timelines({0: 5.0}, {})).items():
        assert seconds == pytest.approx(2e-3 + machine.costs.message[min(source, stage)] / 1e8, rel=1e-6)


def test_a_stage_that_takes_no_time_is_neither_slow_nor_the_fastest() -> None:
    idle = Costs(F=[1.0, 0.0, 1.0], B=[2.0, 0.0, 2.0])
    timelines = [simulate(with_messages(gpipe(3, 4)), idle)]
    for expected in (idle, Costs(F=1.0, B=2.0)):
        assert slow_device(timelines, expected) == '' and slownesses(timelines, expected).keys() == {0, 2}


def test_no_timeline_no_sentence() -> None:
    assert slow_device([], Costs()) == slow_link([], Costs()) == '' and slownesses([], Costs()) == {}
