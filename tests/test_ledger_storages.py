"""What the ledger counts: every storage once, from its first sight to its end, up to a limit."""

import threading

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu.device import Device
from fewgpu.ledger import Counting, Ledger

OPERATIONS = {   # some give a view or work in place, some allocate, some do either
    'clone': torch.clone, 'view': lambda t: t[None], 'reshape': lambda t: t.t().reshape(-1),
    'transpose': torch.t, 'contiguous': lambda t: t.t().contiguous(), 'detach': torch.detach,
    'slice': lambda t: t[:, :1], 'copy of slice': lambda t: t[:1].clone(),
    'add_': lambda t: t.add_(1), 'relu_': torch.relu_,
    'expand': lambda t: t[None].expand(3, -1, -1), 'cat': lambda t: torch.cat([t, t]),
    'split': lambda t: t.split(1), 'unbind copy': lambda t: [x * 2 for x in t.unbind()],
    'sort': torch.sort, 'index': lambda t: t[torch.tensor([0, 0])], 'mask': lambda t: t[t > 0],
    'out=': lambda t: torch.add(t, 1, out=torch.empty_like(t)), 'double': torch.Tensor.double,
    'same dtype': torch.Tensor.float, 'sparse': torch.Tensor.to_sparse,
    'empty': lambda t: t[:0] + 1, 'complex': lambda t: torch.view_as_real(t.to(torch.complex64)),
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
    device = Device('cpu')
    device.meter()
    with device.active():
        layer = nn.Linear(3, 2)
    assert (device.ledger.allocated, device.ledger.parameters) == (4 * 8, 0)
    for _ in range(2):
        device.ledger.adopt(layer.parameters(), parameters=True)
        assert device.ledger.allocated == device.ledger.parameters == 4 * 8
    del layer
    assert device.ledger.allocated == device.ledger.parameters == 0
