"""On one GPU: memory by the allocator's own figures, limits, balance, and the timeline by events."""

import copy
import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fewgpu import GPipe, get_devices
from fewgpu.balance import balance_by_size, balance_by_time
from fewgpu.meter import Memory, Meter
from tests.gpu import GPU, images, layers, on_gpu
from tests.pipes import CHECKPOINTS, settled

pytestmark = pytest.mark.gpu

MB = 10**6
WIDTH, ROWS, DEPTH = 4096, 4096, 24
ACTIVATION = WIDTH * ROWS * 4   # 67 MB, and a Tanh keeps what it returns


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    """Each test begins and ends with what no test holds, and without a limit."""
    torch.cuda.init()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(GPU)
    yield
    gc.collect()
    torch.cuda.empty_cache()
    get_devices(1, kind='cuda')   # lifts a limit that a test set


def chain() -> nn.Sequential:
    """Layers whose memory one can count, and which need no workspace."""
    return nn.Sequential(*[nn.Tanh() for _ in range(DEPTH)])


def train(model: nn.Module, rows: int = ROWS) -> None:
    x = torch.rand(rows, WIDTH, device=GPU, requires_grad=True)
    model(x).sum().backward()
    torch.cuda.synchronize()


def peak(model: nn.Module) -> int:
    """Bytes at the peak of a step, above what was there before."""
    before = torch.cuda.memory_allocated(GPU)
    torch.cuda.reset_peak_memory_stats(GPU)
    train(model)
    return torch.cuda.max_memory_allocated(GPU) - before


def test_the_meter_gives_the_allocators_figures_and_counts_parameters() -> None:
    model = on_gpu(layers(), [2, 2], chunks=2)
    meter = Meter(zip(model.partitions, model.stage_devices))
    for _ in range(3):
        with meter.step(10):
            model(images(device=GPU)).sum().backward()
    (memory,) = meter.memory()   # one line for a GPU that two stages share
    assert memory == Memory('GPU 0', torch.cuda.memory_allocated(GPU),
                            torch.cuda.max_memory_allocated(GPU),
                            sum(p.numel() * 8 for p in model.parameters()),
                            torch.cuda.memory_reserved(GPU))
    assert memory.parameters < memory.allocated <= memory.peak <= memory.reserved
    assert 'reserved' in str(memory) and meter.samples_per_second > 0


def test_recompute_lowers_the_peak() -> None:
    peaks = {checkpoint: peak(on_gpu(chain(), [DEPTH // 2] * 2, chunks=8, checkpoint=checkpoint))
             for checkpoint in CHECKPOINTS}
    assert peaks['always'] < 0.7 * peaks['never'] and peaks['except_last'] < 0.7 * peaks['never']
    assert peaks['never'] >= DEPTH * ACTIVATION
    assert peaks['always'] < 0.7 * peak(chain())


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_nothing_stays_allocated_after_a_step(checkpoint: str) -> None:
    model = on_gpu(chain(), [DEPTH // 2] * 2, chunks=4, checkpoint=checkpoint)
    train(model, 64)
    before = torch.cuda.memory_allocated(GPU)
    for _ in range(3):
        train(model, 64)
    assert settled(lambda: torch.cuda.memory_allocated(GPU) == before)


def test_plain_runs_out_of_the_memory_in_which_a_pipeline_with_recompute_fits() -> None:
    limit = DEPTH * ACTIVATION // 2   # a device; the two that share the GPU may use twice that
    get_devices(1, kind='cuda', memory_limit=2 * limit)
    with pytest.raises(torch.OutOfMemoryError):
        train(chain())
    gc.collect()
    devices = get_devices(2, kind='cuda', memory_limit=limit)
    train(GPipe(chain(), [DEPTH // 2] * 2, devices=devices, chunks=8, checkpoint='always'))
    assert torch.cuda.max_memory_reserved(GPU) <= 2 * limit


def test_a_pipeline_that_ran_out_of_memory_says_where_and_works_with_a_smaller_batch() -> None:
    devices = get_devices(2, kind='cuda', memory_limit=DEPTH * ACTIVATION // 4)
    model = GPipe(chain(), [DEPTH // 2] * 2, devices=devices, chunks=8, checkpoint='never')
    with pytest.raises(torch.OutOfMemoryError) as caught:
        train(model)
    assert any(note.startswith('in stage ') for note in caught.value.__notes__)
    del caught
    gc.collect()
    train(model, ROWS // 8)


def test_a_limit_ends_with_the_next_devices_without_one() -> None:
    get_devices(1, kind='cuda', memory_limit=10 * MB)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(100 * MB, dtype=torch.uint8, device=GPU)
    get_devices(1, kind='cuda')
    assert torch.empty(100 * MB, dtype=torch.uint8, device=GPU).numel() == 100 * MB


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_the_timeline_of_stages_that_share_a_gpu_is_in_order_and_adds_up(checkpoint: str) -> None:
    model = on_gpu(chain(), [DEPTH // 2] * 2, chunks=4, checkpoint=checkpoint)
    for _ in range(2):
        train(model, 256)
    timeline, rounding = model.timeline, 1e-5   # events have a resolution of half a microsecond
    assert timeline.names == ('GPU 0', 'GPU 0')
    for device, row in enumerate(timeline.rows):
        assert all(0 <= span.start <= span.end + rounding for span in row)
        assert all(a.end <= b.start + rounding for a, b in zip(row, row[1:]))
        assert 0 < timeline.busy(device) <= timeline.makespan + rounding
    spans = {(span.op.kind, span.op.stage, span.op.micro_batch): span
             for row in timeline.rows for span in row if span.op.kind in 'FB'}
    for i in range(4):
        assert spans['F', 0, i].end <= spans['F', 1, i].start + rounding
        assert spans['B', 1, i].end <= spans['B', 0, i].start + rounding


@pytest.mark.parametrize('balanced', [balance_by_time, balance_by_size])
def test_a_balance_is_measured_on_the_gpu_and_leaves_the_model_where_it_was(balanced) -> None:
    model = layers(torch.float32)
    before = copy.deepcopy(model.state_dict())
    balance = balanced(2, model, images(8, torch.float32))
    assert len(balance) == 2 and sum(balance) == 4 and min(balance) >= 1
    assert {p.device.type for p in model.parameters()} == {'cpu'}
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    on_gpu(model, balance)(images(8, torch.float32)).sum().backward()
