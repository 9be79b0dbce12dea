"""A spilled model: results are those of the plain one, bytes are those of the rules, and nothing stays behind."""

import copy
import threading
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.device import Device, one_thread
from fewgpu.link import Link, bytes_in
from fewgpu.spill import Spilled, shards_that_fit
from fewgpu.spill.units import Unit, units
from fewgpu.transport.host import FROM_HOST, TO_HOST
from tests.layers import Call
from tests.networks import Case, cases, seeded
from tests.reference import Plain, casting, differences, state

OPTIMIZERS = (partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.05))


def deep(layers: int, width: int = 8) -> nn.Sequential:
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))


def mean_square(outputs, targets):
    return (outputs - targets).square().mean()


def data(rows: int, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, width), torch.randn(rows, width)


balances = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@st.composite
def deep_and_balance(draw):
    """(linear layers, balance of them with their tanh)."""
    layers = draw(st.integers(1, 6))
    cuts = sorted(draw(st.sets(st.integers(1, 2 * layers - 1), max_size=4)))
    return layers, [b - a for a, b in zip([0, *cuts], [*cuts, 2 * layers])]


# results

def plainly(case: Case, dtype: torch.dtype | None) -> tuple | None:
    """Loss, gradients and state of the plain model after one step; None if nothing can be trained."""
    engine = Plain(case, case.model(), dtype)
    with seeded(1):
        run = engine(case.inputs())
        loss = case.loss(run.outputs)
        if loss is None:
            return None
        loss.backward()
        run.backward()
    return loss.detach(), [p.grad for p in engine.model.parameters()], state(engine.model)


@settings(max_examples=80)
@given(cases(chunks=1, inputs_need_gradient=False), st.booleans(), st.booleans(), st.sampled_from([None, torch.bfloat16]))
def test_one_step_of_any_network_equals_the_plain_models(case, prefetch, on_host, dtype):
    expected = plainly(case, dtype)
    assume(expected is not None)
    device = Device()
    device.meter()
    model = Spilled(case.model(), case.balance, device=device, prefetch=prefetch, inputs_on_host=on_host,
                    loss_fn=lambda outputs, _: case.loss(pytree.tree_map_only(
                        torch.Tensor, torch.Tensor.contiguous, outputs)))   # as the reference's are
    with seeded(1), casting(dtype):
        loss = model.step(case.inputs(), torch.zeros(case.rows))
    found = loss, [p.grad for p in model.parameters()], state(model.module)

    assert differences(found, expected) == []
    if 'spectral norm by hooks' not in case.layers:   # which keeps its last weight in an attribute
        assert device.ledger.allocated == 0


@given(deep_and_balance(), st.sampled_from(OPTIMIZERS), st.booleans(), st.integers(1, 4))
def test_updates_are_those_of_the_plain_model_and_its_optimizer(cut, optimizer, prefetch, steps):
    layers, balance = cut
    torch.manual_seed(0)
    plain, model = deep(layers), deep(layers)
    model.load_state_dict(plain.state_dict())
    spilled = Spilled(model, balance, device=Device(), loss_fn=mean_square, optimizer=optimizer, prefetch=prefetch)
    reference = optimizer(plain.parameters())
    for x, y in [data(3) for _ in range(steps)]:
        with one_thread():
            expected = mean_square(plain(x), y)
            expected.backward()
            reference.step()
            reference.zero_grad()
        assert torch.equal(spilled.step(x, y), expected.detach())
    assert differences(dict(spilled.state_dict()), dict(plain.state_dict())) == []


@given(deep_and_balance(), st.integers(1, 4))
def test_without_an_optimizer_gradients_accumulate_over_steps(cut, steps):
    layers, balance = cut
    plain, model = deep(layers), deep(layers)
    model.load_state_dict(plain.state_dict())
    spilled = Spilled(model, balance, device=Device(), loss_fn=mean_square)
    for x, y in [data(3) for _ in range(steps)]:
        with one_thread():
            mean_square(plain(x), y).backward()
        spilled.step(x, y)
    assert differences([p.grad for p in spilled.parameters()], [p.grad for p in plain.parameters()]) == []


@given(deep_and_balance(), st.sampled_from(OPTIMIZERS), st.integers(1, 11))
def test_state_goes_on_with_another_balance(cut, optimizer, first):
    layers, balance = cut
    batches = [data(3) for _ in range(4)]

    def spilled(balance):
        return Spilled(deep(layers), balance, device=Device(), loss_fn=mean_square, optimizer=optimizer)

    through = spilled(balance)
    before, after = spilled(balance), spilled([min(first, 2 * layers), *[2 * layers - first] * (first < 2 * layers)])
    before.load_state_dict(through.state_dict())
    for x, y in batches:
        through.step(x, y)
    for x, y in batches[:2]:
        before.step(x, y)
    after.load_state_dict(before.state_dict())
    after.load_optimizer_state(before.optimizer_state())
    for x, y in batches[2:]:
        after.step(x, y)
    assert differences(dict(after.state_dict()), dict(through.state_dict())) == []


@pytest.mark.parametrize('balance', ([4], [2, 2], [1, 3], [1, 1, 1, 1]))
@pytest.mark.parametrize('on_host', (True, False))
def test_a_layer_that_works_in_place_changes_neither_the_callers_input_nor_what_is_kept(balance, on_host):
    def layers():
        torch.manual_seed(0)
        return nn.Sequential(Call(lambda x: x.add_(1)), nn.Linear(8, 8), Call(lambda x: x.mul_(3)), nn.Linear(8, 8))

    x, y = data(3)
    plain, kept = layers(), x.clone()
    with one_thread():
        mean_square(plain(x.clone()), y).backward()
    model = Spilled(layers(), balance, device=Device(), loss_fn=mean_square, inputs_on_host=on_host)
    model.step(x, y)
    assert torch.equal(x, kept)
    assert differences([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()]) == []


# units, bytes, memory

@given(st.integers(1, 50))
def test_all_shards_but_the_last_have_two_units_in_mirrored_order(shards):
    work = units(shards)
    assert len(work) == 2 * shards - 1
    assert [unit.shard for unit in work] == [*range(shards), *reversed(range(shards - 1))]
    assert [unit.kind for unit in work] == ['F'] * (shards - 1) + ['L'] + ['B'] * (shards - 1)


class Counted(Link):
    """Adds up what it brings."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = {FROM_HOST: 0, TO_HOST: 0}

    def wait(self, value, sent, device):
        self.bytes[device] += bytes_in(value)


@given(deep_and_balance(), st.integers(1, 5), st.booleans(), st.booleans())
def test_weights_come_twice_but_for_the_last_shard_and_gradients_leave_once(cut, rows, prefetch, on_host):
    layers, balance = cut
    link = Counted()
    model = Spilled(deep(layers), balance, device=Device(link=link), loss_fn=mean_square, prefetch=prefetch,
                    inputs_on_host=on_host)
    x, y = data(rows)
    model.step(x, y)
    weights = bytes_in(list(model.parameters()))
    kept = bytes_in(x) * (len(balance) - 1) * on_host   # inputs go to the host, and come again
    assert link.bytes == {FROM_HOST: 2 * weights - model.shards[-1].bytes + bytes_in((x, y)) + kept,
                          TO_HOST: weights + kept}
    loads = [visit.unit for visit in model.visits if visit.what == 'load']
    assert loads == model.units


@given(deep_and_balance(), st.integers(1, 5), st.booleans())
def test_a_byte_less_than_the_peak_is_too_little(cut, rows, on_host):
    layers, balance = cut
    x, y = data(rows)

    def peak(limit):
        device = Device(memory_limit=limit)
        Spilled(deep(layers), balance, device=device, loss_fn=mean_square, prefetch=False,
                inputs_on_host=on_host).step(x, y)
        return device.ledger.peak

    most = peak(10**9)
    assert peak(most) == most
    with pytest.raises(torch.OutOfMemoryError, match='out of memory'):
        peak(most - 1)


def test_a_model_ten_times_the_device_trains():
    torch.manual_seed(0)
    plain = deep(60, 32)
    device = Device(memory_limit=bytes_in(list(plain.parameters())) // 10)
    model = Spilled(deep(60, 32), [2] * 60, device=device, loss_fn=mean_square, inputs_on_host=True)
    model.load_state_dict(plain.state_dict())
    x, y = data(2, 32)
    loss = model.step(x, y)
    with one_thread():
        expected = mean_square(plain(x), y)
        expected.backward()
    assert differences((loss, [p.grad for p in model.parameters()]),
                       (expected.detach(), [p.grad for p in plain.parameters()])) == []
    assert 0 < device.ledger.peak <= device.memory_limit


class Begun(Link):
    """Says that the shard of the next unit is on its way: its load is the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.brought, self.second = 0, threading.Event()

    def wait(self, value, sent, device):
        self.brought += isinstance(value, list) and device == FROM_HOST
        if self.brought == 2:
            self.second.set()


class Waits(nn.Module):
    """Goes on when the link says so."""

    def __init__(self, event: threading.Event, seconds: float) -> None:
        super().__init__()
        self.event, self.seconds, self.came = event, seconds, None

    def forward(self, x):
        if self.came is None:
            self.came = self.event.wait(self.seconds)
        return x


@pytest.mark.parametrize('prefetch', (True, False))
def test_the_next_shard_is_on_its_way_while_one_computes_if_and_only_if_prefetched(prefetch):
    link = Begun()
    waits = Waits(link.second, 20.0 if prefetch else 0.2)
    model = Spilled(nn.Sequential(waits, nn.Linear(8, 8), nn.Linear(8, 8)), [2, 1], device=Device(link=link),
                    loss_fn=mean_square, prefetch=prefetch)
    model.step(*data(2))
    assert waits.came is prefetch


@given(deep_and_balance(), st.booleans())
def test_at_most_two_shards_are_on_the_device(cut, prefetch):
    layers, balance = cut
    model = Spilled(deep(layers), balance, device=Device(), loss_fn=mean_square, prefetch=prefetch)
    model.step(*data(2))
    load = {visit.unit: visit for visit in model.visits if visit.what == 'load'}
    compute = {visit.unit: visit for visit in model.visits if visit.what == 'compute'}
    for before, unit in zip(model.units, model.units[2 if prefetch else 1:]):
        assert load[unit].start >= compute[before].end


# errors

class Breaks(nn.Module):
    def __init__(self, when: str) -> None:
        super().__init__()
        self.when, self.calls = when, 0

    def forward(self, x):
        self.calls += 1
        if self.when == ('F', 'B')[min(self.calls, 2) - 1]:
            raise ArithmeticError('broken')
        return x


@pytest.mark.parametrize('when', 'FB')
@pytest.mark.parametrize('prefetch', (True, False))
def test_an_error_names_shard_unit_and_line_and_leaves_the_weights_on_the_host(when, prefetch):
    model = deep(3)
    model.insert(3, Breaks(when))
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    device = Device(memory_limit=10**6)
    spilled = Spilled(model, [2, 2, 2, 1], device=device, loss_fn=mean_square, prefetch=prefetch,
                      optimizer=OPTIMIZERS[0])
    with pytest.raises(ArithmeticError, match='broken') as caught:
        spilled.step(*data(2))
    notes = '\n'.join(caught.value.__notes__)
    what = {'F': 'forward', 'B': 'backward'}[when]
    assert f'in shard 1 on CPU 0, compute of its {what}' in notes and "raise ArithmeticError('broken')" in notes
    assert ('shards 2, 3 have had their gradients' in notes) == (when == 'B')
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(('fewgpu a', 'fewgpu b'))]


def test_a_shard_that_does_not_fit_says_so():
    model = Spilled(deep(2), [2, 2], device=Device(memory_limit=200), loss_fn=mean_square)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model.step(*data(2))
    assert 'in shard 0 on CPU 0, load of its forward' in '\n'.join(caught.value.__notes__)


def test_an_error_of_the_optimizer_is_raised():
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise OSError('no update')

    model = Spilled(deep(2), [1, 3], device=Device(), loss_fn=mean_square,
                    optimizer=lambda parameters: Fails(parameters, lr=0.1))
    with pytest.raises(OSError, match='no update') as caught:
        model.step(*data(2))
    assert 'store of its' in '\n'.join(caught.value.__notes__)


def renamed(model) -> None:
    """Loads a state with a name that the model has not; the model's own is to stay as it is."""
    model.step(*data(2))
    state, before = model.optimizer_state(), copy.deepcopy(model.optimizer_state())
    for entries in state.values():
        entries['0.other'] = entries['0.bias']
    try:
        model.load_optimizer_state(state)
    finally:
        assert differences(model.optimizer_state(), before) == []


@pytest.mark.parametrize('wrong, error, said', [
    (lambda: Spilled(deep(2), [1, 1], loss_fn=mean_square), ValueError, 'different length'),
    (lambda: Spilled(nn.Sequential(), [], loss_fn=mean_square), ValueError, 'has no layer'),
    (lambda: shards_that_fit(nn.Sequential(), *data(2), mean_square, Device(memory_limit=9)), ValueError, 'has no layer'),
    (lambda: renamed(Spilled(deep(1), [2], loss_fn=mean_square, optimizer=OPTIMIZERS[1])), ValueError,
     'this one has no 0.other'),
    (lambda: Spilled(nn.Linear(1, 1), [1], loss_fn=mean_square), TypeError, 'nn.Sequential'),
    (lambda: Spilled(deep(1), [2], loss_fn=mean_square, optimizer=OPTIMIZERS[0](deep(1).parameters())), TypeError,
     'optimizer of its own'),
    (lambda: Spilled(deep(1), [2], loss_fn=mean_square).step(torch.ones(2, 8), torch.ones(3, 8)), ValueError,
     '3 rows of targets'),
])
def test_bad_input_is_refused_in_a_sentence(wrong, error, said):
    with pytest.raises(error, match=said):
        wrong()


def test_units_are_named_by_what_they_are():
    assert units(2) == [Unit('F', 0), Unit('L', 1), Unit('B', 0)]
