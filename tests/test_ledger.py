"""The ledger counts what a device holds, to the byte: against sums that are done by hand here.

A tensor of r rows and f features takes 4 r f bytes (float32); a linear layer from a to b features
has b (a + 1) parameters. nn.Linear keeps its input for the backward, ReLU its output; nothing else
in these networks is kept.
"""

import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu.device import Device
from fewgpu.gpipe import GPipe
from fewgpu.ledger import Counting, Ledger
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


OPERATIONS = {   # some give a view or work in place, some allocate, some do either
    'clone': torch.clone, 'view': lambda t: t.view(-1), 'reshape': lambda t: t.t().reshape(-1),
    'transpose': torch.t, 'contiguous': lambda t: t.t().contiguous(), 'detach': torch.detach,
    'slice': lambda t: t[:, :1], 'copy of slice': lambda t: t[:1].clone(),
    'add_': lambda t: t.add_(1), 'relu_': torch.relu_,
    'expand': lambda t: t[None].expand(3, -1, -1), 'cat': lambda t: torch.cat([t, t]),
    'split': lambda t: t.split(1), 'unbind copy': lambda t: [x * 2 for x in t.unbind()],
    'sort': torch.sort, 'index': lambda t: t[torch.tensor([0, 0])], 'mask': lambda t: t[t > 0],
    'out=': lambda t: torch.add(t, 1, out=torch.empty_like(t)), 'double': torch.Tensor.double,
    'same dtype': torch.Tensor.float, 'sparse': torch.Tensor.to_sparse, 'empty': lambda t: t[:0] + 1,
    'complex': lambda t: torch.view_as_real(t.to(torch.complex64)),
}


def held(value: object) -> list[torch.Tensor]:
    """The dense tensors that a result consists of."""
    if isinstance(value, torch.Tensor):
        return [value._indices(), value._values()] if value.is_sparse else [value]
    return [tensor for item in value for tensor in held(item)]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.booleans()),
                max_size=12))
def test_allocated_is_the_sum_of_the_storages_alive(program: list[tuple[str, int, bool]]) -> None:
    """Views, in-place operations and sparse tensors count nothing twice."""
    ledger, alive = Ledger(), []
    with Counting(ledger):
        alive.append(torch.arange(6.).view(2, 3) - 2)
    peak = ledger.peak
    for name, which, drop in program:
        source = alive[which % len(alive)]
        if (isinstance(source, torch.Tensor) and source.dim() == 2 and source.numel()
                and not source.is_sparse):
            with Counting(ledger):
                alive.append(OPERATIONS[name](source))
        del source
        if drop and len(alive) > 1:
            alive.pop(which % len(alive))
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
                    for value in alive for tensor in held(value)}
        assert ledger.allocated == sum(storages.values())
        assert ledger.peak >= max(peak, ledger.allocated)
        peak = ledger.peak
    alive.clear()
    assert ledger.allocated == 0


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 400),
       st.lists(st.booleans(), min_size=30, max_size=30))
def test_a_limit_is_never_exceeded_and_raises_just_when_it_would_be(
        sizes: list[int], limit: int, drops: list[bool]) -> None:
    ledger, alive = Ledger('CPU 7', limit=4 * limit), []
    for size, drop in zip(sizes, drops):
        fits = sum(map(len, alive)) + size <= limit
        with Counting(ledger):
            if fits:
                alive.append(torch.empty(size))
            else:
                with pytest.raises(torch.OutOfMemoryError, match='CPU 7 out of memory'):
                    torch.empty(size)
        assert ledger.allocated == 4 * sum(map(len, alive)) <= ledger.peak <= ledger.limit
        if drop and alive:
            alive.pop()
    ledger.reset_peak()
    assert ledger.peak == ledger.allocated == 4 * sum(map(len, alive))


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


def test_many_threads_count_into_one_ledger() -> None:
    ledger, kept = Ledger(), []

    def work(k: int) -> None:
        with Counting(ledger):
            for round_ in range(200):
                parts = [torch.empty(k + 1) for _ in range(5)]
                if round_ % 50 == 0:
                    kept.append(parts[0])
                shared = kept[-1] if kept else parts[0]
                shared.view(-1).add_(1)   # someone else's storage: counts nothing

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.allocated == 4 * sum(map(len, kept))
    kept.clear()
    assert ledger.allocated == 0


def test_what_is_adopted_counts_once_and_as_long_as_it_lives() -> None:
    ledger, layer = Ledger(), nn.Linear(3, 2)
    for _ in range(3):
        ledger.adopt(layer.parameters(), parameters=True)
        ledger.adopt([layer.weight.detach(), layer.weight[:1]])
    assert ledger.allocated == ledger.parameters == 4 * 8
    other = Ledger()
    other.adopt(layer.parameters())
    assert (other.allocated, other.parameters) == (4 * 8, 0)
    del layer
    assert ledger.allocated == ledger.parameters == other.allocated == 0


def test_a_model_made_on_the_device_counts_as_parameters_once_it_is_adopted() -> None:
    (device,) = metered(1)
    with device.active():
        layer = nn.Linear(3, 2)
    assert (device.ledger.allocated, device.ledger.parameters) == (4 * 8, 0)
    for _ in range(2):
        device.ledger.adopt(layer.parameters(), parameters=True)
        assert device.ledger.allocated == device.ledger.parameters == 4 * 8
    del layer
    assert device.ledger.allocated == device.ledger.parameters == 0
