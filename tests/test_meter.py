"""The meter's figures are those that one counts by hand."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import Device, GPipe, get_devices
from fewgpu.meter import Memory, Meter, parse_bytes

UNITS = {'': 1, 'B': 1, 'kB': 10**3, 'MB': 10**6, 'GB': 10**9, 'TB': 10**12,
         'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30, 'Ti': 2**40}
FLOAT = 4   # bytes


def parameters_of(layer: nn.Linear) -> int:
    """Bytes, counted by hand."""
    return (layer.in_features + 1) * layer.out_features * FLOAT


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)), space=st.sampled_from(['', ' ']),
       case=st.sampled_from([str, str.upper, str.lower]))
def test_an_amount_of_memory_is_its_number_times_its_unit(number: int, unit: str, space: str,
                                                          case) -> None:
    assert parse_bytes(f'{number}{space}{case(unit)}') == number * UNITS[unit]


@given(tenths=st.integers(1, 10**5))
def test_an_amount_may_have_decimals(tenths: int) -> None:
    assert parse_bytes(f'{tenths / 10:.1f}GB') == pytest.approx(tenths * 10**8, abs=1)


@pytest.mark.parametrize('text', ['', 'much', '-1MB', '0', '0GB', '1e3', '1 PB', '600 MB each', 'MB'])
def test_no_amount_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match='write it like 600MB'):
        parse_bytes(text)


def test_memory_prints_as_the_lecture_has_it() -> None:
    assert str(Memory('CPU 1', 123_400_000, 7_900_000_000, 0)) == (
        'CPU 1: allocated 0.123 GB, peak 7.900 GB')
    assert str(Memory('GPU 0', 271_000_000, 7_900_000_000, 0, 8_072_000_000)) == (
        'GPU 0: allocated 0.271 GB, reserved 8.072 GB, peak 7.900 GB')


@settings(max_examples=15)
@given(widths=st.tuples(*[st.integers(1, 9)] * 4), rows=st.integers(1, 6), momentum=st.booleans())
def test_a_step_of_the_plain_model_leaves_parameters_gradients_and_optimizer_state(
        widths: tuple, rows: int, momentum: bool) -> None:
    layers = [nn.Linear(a, b) for a, b in zip(widths, widths[1:])]
    model, (device,) = nn.Sequential(*layers), get_devices(1, kind='cpu')
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if momentum else 0.0)
    meter, x = Meter([(model, device)], optimizer), torch.rand(rows, widths[0])
    with meter.step(rows), device.active():
        model(x).sum().backward()
        optimizer.step()
    own = sum(map(parameters_of, layers))
    (memory,) = meter.memory()
    assert (memory.name, memory.parameters, memory.reserved) == ('CPU 0', own, None)
    assert memory.allocated == own * (3 if momentum else 2)
    assert memory.peak >= memory.allocated


@given(width=st.integers(1, 50), rows=st.integers(1, 50), depth=st.integers(2, 6))
def test_the_peak_of_a_chain_without_gradients_is_two_activations(width: int, rows: int,
                                                                  depth: int) -> None:
    """What a layer reads and what it writes; the caller's input is not the device's."""
    model, (device,) = nn.Sequential(*[nn.Tanh() for _ in range(depth)]), get_devices(1, kind='cpu')
    meter, x = Meter([(model, device)]), torch.rand(rows, width)
    with meter.step(rows), device.active(), torch.no_grad():
        model(x)
    (memory,) = meter.memory()
    assert (memory.allocated, memory.peak) == (0, 2 * rows * width * FLOAT)


@given(width=st.integers(1, 50), rows=st.integers(1, 50), depth=st.integers(2, 6))
def test_the_peak_of_a_training_step_is_every_activation_and_two_gradients(
        width: int, rows: int, depth: int) -> None:
    """And the loss and its gradient, a number each."""
    model, (device,) = nn.Sequential(*[nn.Tanh() for _ in range(depth)]), get_devices(1, kind='cpu')
    meter, x = Meter([(model, device)]), torch.rand(rows, width, requires_grad=True)
    with meter.step(rows), device.active():
        output = model(x)
        output.sum().backward()
    (memory,) = meter.memory()
    size = rows * width * FLOAT
    assert memory.peak == (depth + 2) * size + 2 * FLOAT
    assert memory.allocated == 2 * size   # the output, and the gradient of x


@settings(max_examples=10)
@given(width=st.integers(8, 32), chunks=st.integers(1, 4))
def test_every_stage_of_a_pipeline_is_counted_on_its_device(width: int, chunks: int) -> None:
    layers = [nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(2 * width, 3)]
    model = GPipe(nn.Sequential(*layers), [1, 2], devices=get_devices(2, kind='cpu'), chunks=chunks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter = Meter(zip(model.partitions, model.stage_devices), optimizer)
    with meter.step(8):
        model(torch.rand(8, width)).sum().backward()
        optimizer.step()
    first, second = meter.memory()
    own = [parameters_of(layers[0]), parameters_of(layers[1]) + parameters_of(layers[2])]
    assert [first.parameters, second.parameters] == own
    assert [first.allocated, second.allocated] == [3 * own[0], 3 * own[1]]
    assert min(first.peak - first.allocated, second.peak - second.allocated) >= 0


def test_recompute_lowers_the_peak_that_the_meter_sees() -> None:
    def peak(checkpoint: str) -> int:
        layers = nn.Sequential(*[nn.Sequential(*[nn.Tanh()] * 8) for _ in range(2)])
        model = GPipe(layers, [1, 1], devices=get_devices(2, kind='cpu'), chunks=8,
                      checkpoint=checkpoint)
        meter = Meter(zip(model.partitions, model.stage_devices))
        with meter.step(64):
            model(torch.rand(64, 100, requires_grad=True)).sum().backward()
        return max(memory.peak for memory in meter.memory())

    assert 2 * peak('always') < peak('never')


@pytest.mark.parametrize('limit', [None, 10**9])
def test_the_ledger_counts_in_the_warm_up_and_with_a_limit_always(limit: int | None) -> None:
    device, counted = Device(memory_limit=limit), []
    meter = Meter([(nn.Linear(2, 2), device)], warm_up=2)
    for samples in (7, 7, 1, 2, 3):
        with meter.step(samples):
            counted.append(device.ledger is not None)
    assert counted == [True, True, *[limit is not None] * 3]
    assert meter.measured_steps == 3
    assert meter.memory()[0].parameters == parameters_of(nn.Linear(2, 2))


def test_the_speed_leaves_the_warm_up_out_if_there_is_anything_else() -> None:
    meter = Meter([(nn.Linear(2, 2), Device())], warm_up=1)
    with meter.step(10**9):   # an absurd number of samples, to be seen in the speed if it counted
        pass
    with_warm_up = meter.samples_per_second
    with meter.step(1):
        sum(range(1000))
    assert 0 < meter.samples_per_second < with_warm_up
    assert meter.measured_steps == 1


def test_a_limited_device_that_is_used_again_forgets_the_peak_of_before() -> None:
    device = Device('cpu', memory_limit=10**8)
    peaks = []
    for width in (1000, 10):
        model = nn.Linear(width, 1, bias=False)
        meter, x = Meter([(model, device)]), torch.rand(1, width)
        with meter.step(1), device.active(), torch.no_grad():
            model(x)
        peaks.append(meter.memory()[0].peak)
        del model, meter
    assert peaks == [(1000 + 1) * FLOAT, (10 + 1) * FLOAT]


def test_an_interrupted_step_leaves_no_ledger_on() -> None:
    model, (device,) = nn.Linear(2, 2), get_devices(1, kind='cpu')
    meter = Meter([(model, device)])
    with pytest.raises(KeyboardInterrupt), meter.step(1):
        raise KeyboardInterrupt
    assert device.ledger is None
