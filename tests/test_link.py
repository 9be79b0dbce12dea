"""Links and paces of virtual devices: transfers and operations that take time, and use no core."""

import threading
import time

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu import Device, Pipeline, get_devices
from fewgpu.link import Link, bytes_in

TIMES = st.floats(0.0, 10.0)
MESSAGES = st.lists(st.tuples(st.integers(0, 100), TIMES, st.integers(0, 2)), max_size=12)


@given(MESSAGES, TIMES, st.floats(1.0, 100.0))
def test_messages_of_one_source_pass_one_after_the_other(messages: list, latency: float,
                                                         bandwidth: float) -> None:
    messages.sort(key=lambda message: message[1])
    link, last = Link(latency, bandwidth), {}
    for count, sent, source in messages:
        arrived = link.arrival(count, sent, source)
        leaves = max(sent, last.get(source, 0.0))   # behind what the same source sent before
        last[source] = leaves + count / bandwidth
        assert arrived == pytest.approx(last[source] + latency)


@pytest.mark.parametrize('latency, bandwidth', [(-1.0, 1.0), (0.0, 0.0), (0.0, -5.0)])
def test_a_link_that_cannot_be_is_refused(latency: float, bandwidth: float) -> None:
    with pytest.raises(ValueError, match='latency of at least 0 s and a bandwidth above 0'):
        Link(latency, bandwidth)


@pytest.mark.parametrize('pace', [0.0, -1.0, 1.5])
def test_a_pace_that_cannot_be_is_refused(pace: float) -> None:
    with pytest.raises(ValueError, match='above 0 and at most 1'):
        Device(pace=pace)


def test_bytes_are_counted_in_any_nesting() -> None:
    value = {'a': torch.zeros(3), 'b': [torch.zeros(2, 2, dtype=torch.float64), None, 5]}
    assert bytes_in(value) == 3 * 4 + 4 * 8


def test_a_paced_operation_takes_its_time_divided_by_the_pace_and_no_core() -> None:
    device, times, done = Device(pace=0.25), [], threading.Event()

    def job() -> None:
        start, computed = time.perf_counter(), time.thread_time()
        with device.paced():
            while time.thread_time() - computed < 0.05:
                pass
        times.extend((time.perf_counter() - start, time.thread_time() - computed))
        done.set()

    device.submit(job)
    assert done.wait(30)
    taken, computed = times
    assert taken >= computed / 0.25 - 0.02 and computed < taken


@pytest.mark.parametrize('options', [{'latency': 0.01}, {'bandwidth': 1e6}, {'pace': 0.5}])
def test_links_and_paces_change_no_result(options: dict) -> None:
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.rand(2, 6, 4)
    pipeline = Pipeline(model, [1] * 3, chunks=3, loss_fn=nn.functional.mse_loss,
                        devices=get_devices(3, kind='cpu', **options))
    torch.testing.assert_close(pipeline.step(x, y), nn.functional.mse_loss(model(x), y).detach())


def test_every_message_between_stages_takes_the_latency() -> None:
    pipeline = Pipeline(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), [1] * 3, chunks=2,
                        loss_fn=nn.functional.mse_loss,
                        devices=get_devices(3, kind='cpu', latency=0.05))
    x, y = torch.rand(2, 6, 4)
    pipeline.step(x, y)
    spans = [span for row in pipeline.trace.rows for span in row]
    sent = {span.op.message: span.start for span in spans if span.op.kind == 'send'}
    waited = [span.end - sent[span.op.message] for span in spans
              if span.op.kind == 'recv' and span.op.message in sent]
    assert len(waited) == 2 * 2 * 2 and min(waited) >= 0.05


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_a_gpu_gets_no_link() -> None:
    with pytest.raises(ValueError, match='there is no cuda'):
        get_devices(2, kind='cuda', latency=0.1)
