"""Nothing hangs: a schedule that cannot go on explains itself, and so does a wait that takes too long.

The schedules are run by hand, through the interpreter that runs every schedule.
"""

import time
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu.context import Context
from fewgpu.device import get_devices
from fewgpu import run as interpreter
from fewgpu.schedule import Message, Op, Schedule, activation, gpipe, gradient, with_messages
from fewgpu.stage import Stage
from fewgpu.transport import Deadlock, Mailbox
from tests.pipes import Call, Slow


def run(schedule: Schedule, *, fed: Iterable[int] | None = None, collect: Iterable[Message] = (),
        time_limit: float | None = None, layers: list[nn.Module] | None = None) -> list:
    """Run a schedule without messages on virtual devices, and hand in every input and gradient."""
    layers = layers or [nn.Linear(2, 2) for _ in range(schedule.stages)]
    devices = get_devices(len(schedule.rows), kind='cpu')
    context = Context.capture(devices)
    stages = [{j: Stage(j, nn.Sequential(layers[j]), devices[row]).begin(context, schedule.micro_batches)
               for j in {op.stage for op in ops}} for row, ops in enumerate(schedule.rows)]
    feed = {activation(0, i): torch.rand(3, 2)
            for i in (range(schedule.micro_batches) if fed is None else fed)}
    feed |= {gradient(schedule.stages - 1, i): [torch.ones(3, 2)]
             for i in range(schedule.micro_batches)}
    messages = with_messages(schedule)
    values, _ = interpreter.run(messages, range(len(devices)), devices, stages, feed, collect,
                                whole=schedule, mailbox=Mailbox(messages, time_limit=time_limit))
    return values


def rows(*texts: str) -> tuple[tuple[Op, ...], ...]:
    """'F0 B0', 'F0 B0' -> the rows of two stages."""
    return tuple(tuple(Op(name[0], stage, int(name[1:])) for name in text.split())
                 for stage, text in enumerate(texts))


@pytest.mark.parametrize('texts, chain', [
    (('F0 B0 F1 B1', 'F0 F1 B1 B0'),
     ['stage 1 waits for F1 from stage 0', 'stage 0 waits for B0 from stage 1']),
    (('F0 B0', 'B0 F0', 'F0 B0'),
     ['stage 2 waits for F0 from stage 1', 'stage 1 waits for B0 from stage 2']),
    (('F0', 'F0 F1'), ['stage 1 waits for F1 from stage 0', 'device 0 is done']),
])
def test_a_wrong_schedule_explains_who_waits_for_whom_at_once(texts: tuple, chain: list) -> None:
    schedule = Schedule('wrong', len(texts), 2, rows(*texts))
    with pytest.raises(Deadlock, match='deadlock: ') as caught:
        run(schedule)
    found = str(caught.value).removeprefix('deadlock: ').split(', ')
    assert set(found) >= set(chain)   # it may begin with another who waits for one of them
    assert len(found) == len(set(found)) <= len(texts)


def test_a_chain_of_waits_is_followed_to_its_end() -> None:
    with pytest.raises(Deadlock) as caught:
        run(gpipe(3, 3).halves()[0], fed=[0, 1])
    chain = str(caught.value)
    assert chain.endswith('stage 0 waits for F2 from the caller')
    assert chain.count('waits for F2') in (1, 2, 3)   # it begins with whoever noticed


@settings(max_examples=20)
@given(stages=st.integers(1, 4), micro_batches=st.integers(1, 4), data=st.data())
def test_a_schedule_in_any_order_ends_with_its_outputs_or_with_an_explanation(
        stages: int, micro_batches: int, data) -> None:
    order = gpipe(stages, micro_batches)
    shuffled = Schedule('shuffled', stages, micro_batches, tuple(
        tuple(data.draw(st.permutations(row))) for row in order.rows))
    try:
        values = run(shuffled, collect=[gradient(-1, i) for i in range(micro_batches)])
    except Deadlock as error:
        assert 'waits for' in str(error)
    except KeyError:   # a backward before its own forward: an error of the last stage
        assert any(row.index(Op('B', stage, i)) < row.index(Op('F', stage, i))
                   for stage, row in enumerate(shuffled.rows) for i in range(micro_batches))
    else:
        assert len(values) == micro_batches


def test_an_output_that_no_operation_makes_is_named() -> None:
    with pytest.raises(Deadlock, match='without the activation of micro-batch 5 for stage 2'):
        run(gpipe(2, 2).halves()[0], collect=[activation(2, 5)])


def test_a_time_limit_that_passes_says_who_waits_for_whom_and_where_the_other_is() -> None:
    layers = [Slow(2.0), nn.Linear(2, 2)]
    with pytest.raises(Deadlock) as caught:
        run(gpipe(2, 2).halves()[0], time_limit=0.5, layers=layers)
    assert str(caught.value) == ('after 0.5 s stage 1 waits for F0 from stage 0, '
                                 'device 0 is at F0')


def test_a_time_limit_bounds_one_wait_and_not_the_whole_step() -> None:
    values = run(gpipe(2, 5).halves()[0], time_limit=2.5, layers=[Slow(0.7), nn.Linear(2, 2)],
                 collect=[activation(2, 4)])
    assert len(values) == 1


def test_an_error_wins_over_the_waits_that_it_causes() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        raise ArithmeticError('the real one')

    with pytest.raises(ArithmeticError, match='the real one'):
        run(gpipe(3, 2).halves()[0], layers=[nn.Linear(2, 2), Call(layer), nn.Linear(2, 2)])


def test_a_device_without_operations_is_done_at_once() -> None:
    schedule = Schedule('half empty', 1, 2, (*rows('F0 F1'), ()))
    assert len(run(schedule, collect=[activation(1, i) for i in range(2)])) == 2
