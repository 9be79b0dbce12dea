"""The ledger counts what a device holds, to the byte: against sums that are done by hand here.

A tensor of r rows and f features takes 4 r f bytes (float32); a linear layer from a to b features
has b (a + 1) parameters. nn.Linear keeps its input for the backward, ReLU its output; nothing else
in these networks is kept.
"""

import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu.device import Device
from fewgpu.gpipe import GPipe
from fewgpu.ledger import Ledger
from tests.networks import CHECKPOINTS, Case, cases, evenly

WIDTHS = st.lists(st.integers(1, 20), min_size=2, max_size=5)


def metered(count: int) -> list[Device]:
    devices = [Device('cpu', index=j) for j in range(count)]
    for device in devices:
        device.meter()
    return devices


def parameters(*widths: int) -> int:
    """Numbers in a chain of linear layers."""
    return sum(b * (a + 1) for a, b in zip(widths, widths[1:]))


def chain(widths: Sequence[int], relu: bool = False) -> nn.Sequential:
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b)] + [nn.ReLU()] * relu
    return nn.Sequential(*layers)


@given(WIDTHS, evenly(1, 7), st.booleans())
def test_a_plain_forward_holds_parameters_and_what_the_backward_needs(
        widths: list[int], rows: int, relu: bool) -> None:
    model, (device,) = chain(widths, relu), metered(1)
    device.ledger.adopt(model.parameters(), parameters=True)
    assert device.ledger.allocated == device.ledger.parameters == 4 * parameters(*widths)
    inputs = torch.ones(rows, widths[0])   # made outside: the caller's
    with device.active():
        outputs = model(inputs)
    # The outputs of all layers live: each is the next one's input, the last is held here. The
    # peak has, for one moment, the output of a linear layer beside that of its ReLU.
    live = sum(widths[1:])
    at_peak = max(sum(widths[1:k + 1]) + (widths[k] if relu else 0) for k in range(1, len(widths)))
    assert device.ledger.allocated == 4 * (parameters(*widths) + rows * live)
    assert device.ledger.peak == 4 * (parameters(*widths) + rows * at_peak)
    del outputs
    assert device.ledger.allocated == 4 * parameters(*widths)


@given(WIDTHS, evenly(2, 7))
def test_a_plain_backward_peaks_where_the_sum_says(widths: list[int], rows: int) -> None:
    """A linear layer's backward holds the gradients of its output, weight, bias and input, and
    frees its own input, and the gradient of its output, only then. (The first has no gradient of
    its input.)"""
    model, (device,) = chain(widths), metered(1)
    device.ledger.adopt(model.parameters(), parameters=True)
    inputs, gradient = torch.ones(rows, widths[0]), torch.ones(rows, widths[-1])
    with device.active():
        outputs = model(inputs)
        outputs.backward(gradient)   # made outside as well
    static, live, peak = parameters(*widths), rows * sum(widths[1:]), 0
    done = 0   # numbers in the gradients of layers that are done
    peak = static + live
    for k in reversed(range(len(widths) - 1)):
        a, b = widths[k], widths[k + 1]
        of_output = rows * b if k < len(widths) - 2 else 0
        of_input = rows * a if k > 0 else 0
        done += parameters(a, b)
        peak = max(peak, static + live + done + of_output + of_input)
        live -= rows * a if k > 0 else 0   # what the layer had kept
    assert device.ledger.allocated == 4 * (2 * static + rows * widths[-1])   # outputs are held here
    assert device.ledger.peak == 4 * peak
    model.zero_grad()
    del outputs
    assert device.ledger.allocated == device.ledger.parameters == 4 * static
    del model
    assert device.ledger.allocated == device.ledger.parameters == 0


@given(evenly(1, 6), evenly(1, 9), st.sampled_from(CHECKPOINTS), st.tuples(*[evenly(1, 9)] * 5))
def test_stages_hold_after_the_forward_what_the_checkpoint_mode_keeps(
        chunks: int, rows: int, checkpoint: str, widths: tuple[int, ...]) -> None:
    """Two stages of Linear, ReLU, Linear. Each has its own copy of its input; 'never' keeps the
    ReLU's output beside it, 'except_last' for the last micro-batch, 'always' for none."""
    a, b, c, d, e = widths
    model = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c),
                          nn.Linear(c, d), nn.ReLU(), nn.Linear(d, e))
    devices = metered(2)
    model = GPipe(model, [3, 3], devices=devices, chunks=chunks, checkpoint=checkpoint)
    inputs = torch.ones(rows, a)
    outputs = model(inputs)
    last = rows // min(rows, chunks)   # rows of the last micro-batch, the smallest
    kept = {'never': rows, 'except_last': last, 'always': 0}[checkpoint]
    first, second = (device.ledger for device in devices)
    assert first.parameters == 4 * parameters(a, b, c)
    assert first.allocated == first.parameters + 4 * (rows * a + kept * b)
    assert second.parameters == 4 * parameters(c, d, e)
    assert second.allocated == second.parameters + 4 * (rows * c + kept * d + rows * e)

    outputs.backward(torch.ones(rows, e))
    assert first.allocated == 2 * first.parameters                    # gradients of parameters
    assert second.allocated == 2 * second.parameters + 4 * rows * e   # and the outputs
    model.zero_grad()
    del outputs
    assert [ledger.allocated for ledger in (first, second)] == [
        ledger.parameters for ledger in (first, second)]
    del model
    assert first.allocated == second.allocated == 0


# (Without spectral norm: it keeps tensors in attributes, and its modules are cycles. Without layers
# that give their parameters new data, which are known as such in the next step only.)
@given(cases(without=('counts', 'bounds')), st.booleans())
def test_any_step_leaves_nothing_but_parameters_and_no_garbage(case: Case, backward: bool) -> None:
    """At once, without a garbage collection; after a step dropped half-way, too."""
    devices = metered(len(case.balance))
    model = case.pipeline(devices=devices)
    for step in range(2):
        outputs = model(case.inputs(step))
        loss = case.loss(outputs)
        if backward and loss is not None:
            loss.backward()
        del outputs, loss
    model.zero_grad()
    for device in devices:
        assert device.ledger.allocated == device.ledger.parameters
    del model
    assert [device.ledger.allocated for device in devices] == [0] * len(devices)


@given(st.sampled_from(CHECKPOINTS))
def test_a_step_that_does_not_fit_raises_and_the_next_smaller_one_works(checkpoint: str) -> None:
    devices = [Device('cpu', index=j, memory_limit=100_000) for j in range(2)]
    model = GPipe(chain([50, 50, 50], relu=True), [2, 2], devices=devices, chunks=2,
                  checkpoint=checkpoint)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(800, 50))
        model(torch.ones(40, 50)).sum().backward()
        assert all(device.ledger.peak <= 100_000 for device in devices)


@given(st.integers(1, 10**7), st.data())
def test_what_does_not_fit_is_told_in_amounts_that_are_not_nothing(size: int, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, size))
    ledger = Ledger('CPU 3', limit=limit - 1)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        ledger.see(torch.empty(size, dtype=torch.uint8))
    told = re.search(r'Tried to allocate ([\d,.]+) (\w+); of its ([\d,.]+) (\w+) limit 0 bytes are', str(caught.value))
    for number, unit, exact in ((*told.group(1, 2), size), (*told.group(3, 4), limit - 1)):
        factor = {'bytes': 1, 'kB': 1e3, 'MB': 1e6}[unit]
        assert abs(float(number.replace(',', '')) * factor - exact) <= factor / 20 + 1e-6 * exact
        assert float(number.replace(',', '')) >= 1 or exact == 0
