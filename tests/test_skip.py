"""Long skips: a pipeline with skips computes what the plain model does, and moves no byte too many."""

import copy
import gc
import pickle
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import nn

from fewgpu import GPipe, ModelParallel, Pipeline
from fewgpu.balance import balance_by_size, balance_by_time, cut_mirrored, profile
from fewgpu.device import Device, one_thread
from fewgpu.link import bytes_in
from fewgpu.loss import shares
from fewgpu.microbatch import sizes
from fewgpu.schedule import (CHECKPOINTS, SCHEDULES, Schedule, Skip, check, gpipe, skip_name, v_shape,
                             with_messages, with_skips)
from fewgpu.schedule.waits import verify_no_deadlock
from fewgpu.simulate import Costs, simulate
from fewgpu.skip import Load, Save, SkipSequential, _thread, routes, verify_skips
from fewgpu.transport import Mailbox
from tests import skips
from tests.networks import evenly, seeded, virtual
from tests.pipes import BACKWARD, FORWARD, Failing
from tests.reference import Pipelined, compare
from tests.schedules import schedules
from tests.skips import SkipCase, networks, skip_cases
from tests.test_gpipe_equals_plain import train, train_step

mse = nn.functional.mse_loss
FLUSHING = ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'zb-h2', 'v-shape')


def linear() -> nn.Module:
    return nn.Linear(4, 4)


# GPipe and ModelParallel


@settings(max_examples=40)
@given(skip_cases())
def test_outputs_and_gradients_equal_the_plain_models_to_the_bit(case: SkipCase) -> None:
    assert compare(case, lambda engine: train(engine, steps=2), dtype=torch.float64) == []


@given(skip_cases(plain=('linear', 'dropout')))
def test_dropout_draws_the_same_masks(case: SkipCase) -> None:
    assert compare(case, lambda engine: train_step(engine, 0), dtype=torch.float64) == []


@given(skip_cases(), st.sampled_from([torch.no_grad, torch.inference_mode]))
def test_without_gradients_outputs_are_the_same(case: SkipCase, mode) -> None:
    def evaluate(engine: Pipelined) -> list:
        engine.model.eval()
        with mode():
            return [engine(case.inputs().detach()).outputs.clone()]
    assert compare(case, evaluate, dtype=torch.float64) == []


@given(skip_cases())
def test_retained_graphs_give_the_same_gradients_again(case: SkipCase) -> None:
    assume(case.loss(case.model()(case.inputs())) is not None)
    model, x = case.pipeline(), case.inputs()
    loss = case.loss(model(x))
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    loss.backward()
    twice = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(once) == len(twice) and all(torch.equal(a + a, b) for a, b in zip(once, twice))


@given(skip_cases())
def test_keys_are_the_plain_models_and_copies_are_the_same(case: SkipCase) -> None:
    assume(not any(kind == 'beside' for kind, *_ in case.layers))   # a lambda cannot be pickled
    model, x = case.pipeline(), case.inputs().detach()
    assert [*model.state_dict()] == [*case.model().state_dict()]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))


# Pipeline


def plain_gradients(case: SkipCase, rows: list[int], x: torch.Tensor, y: torch.Tensor, *,
                    descending: bool) -> tuple[torch.Tensor, list]:
    """Loss and gradients of the plain model, micro-batch by micro-batch."""
    model, losses = case.model(), []
    parts = [*zip(x.split(rows), y.split(rows), shares(rows, None, mse))]
    with one_thread():
        for part, target, share in reversed(parts) if descending else parts:
            losses.append(mse(model(part.clone()), target.clone()) * share)
            losses[-1].backward()
    return sum(losses).detach(), [p.grad for p in model.parameters()]


@settings(max_examples=40)
@given(st.data(), networks(), st.sampled_from(FLUSHING), st.sampled_from(CHECKPOINTS),
       st.sampled_from(['straight', 'through']))
def test_any_schedule_trains_as_the_plain_model_to_the_bit(data, layers, schedule, checkpoint, way) -> None:
    most = {'interleaved': 2, 'v-shape': 2}.get(schedule, 4)
    devices = data.draw(evenly(1, min(most, len(layers) // 2)))
    stages = 2 * devices if most == 2 else devices
    balance = data.draw(skips.cuts(len(layers), stages).filter(lambda cut: len(cut) == stages))
    chunks = devices * data.draw(evenly(1, 2)) if schedule == 'interleaved' else data.draw(evenly(1, 5))
    case = SkipCase(layers, balance, chunks + data.draw(evenly(0, 2)), chunks, checkpoint)
    x, y = case.inputs().detach(), case.inputs(1).detach()
    pipeline = Pipeline(case.model(), balance, schedule=schedule, chunks=chunks, checkpoint=checkpoint,
                        devices=['cpu'] * devices, loss_fn=mse, skips=way)
    loss = pipeline.step(x, y)
    expected, gradients = plain_gradients(case, sizes(case.rows, chunks), x, y,
                                          descending=schedule == 'gpipe')
    torch.testing.assert_close(loss, expected)
    assert all(torch.equal(p.grad, g) for p, g in zip(pipeline.parameters(), gradients))
    with one_thread():
        parts = [case.model().eval()(part.clone()) for part in x.split(sizes(case.rows, chunks))]
    assert torch.equal(pipeline.eval_step(x), torch.cat(parts))
    assert [*pipeline.state_dict()] == [*case.model().state_dict()]


# What moves


class Sent:
    """Every message that a mailbox was given, and its bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple] = []
        send = Mailbox.send

        def sending(mailbox, message, parcel) -> None:
            self.messages.append((message, bytes_in(parcel.value)))
            send(mailbox, message, parcel)
        monkeypatch.setattr(Mailbox, 'send', sending)

    def of_skips(self) -> dict:
        return {message: size for message, size in self.messages if skip_name(message.what)}


@given(skip_cases())
def test_a_skip_moves_once_to_each_stage_that_loads_it_and_through_once_a_boundary(case: SkipCase) -> None:
    case = SkipCase(**{**vars(case), 'frozen': 0})
    with pytest.MonkeyPatch.context() as patch:
        sent = Sent(patch)
        model = case.pipeline()
        model(case.inputs()).sum().backward()
    hops = {}
    for name, (source, *uses) in case.ends().items():
        hops[name] = (len({*uses} - {source}) if case.skips == 'straight' else max(uses) - source)
    moved = sent.of_skips()
    each = Counter(skip_name(message.what) for message in moved)
    assert each == {name: 2 * count * case.micro_batches for name, count in hops.items() if count}
    assert len(moved) == sum(bool(skip_name(message.what)) for message, _ in sent.messages)
    # the forward's values, and as many bytes of gradients (4 numbers of 8 bytes a row)
    assert sum(moved.values()) == 2 * sum(hops.values()) * case.rows * skips.WIDTH * 8
    for boundary in range(1, len(case.balance)):
        over = sum(size for message, size in moved.items() if message.what.startswith('skip ')
                   and message.source < boundary <= message.stage)
        crossing = [name for name, (source, *uses) in case.ends().items() if source < boundary <= max(uses)]
        assert over == len(crossing) * case.rows * skips.WIDTH * 8


def test_a_skip_that_needs_no_gradient_sends_none_back(monkeypatch) -> None:
    model = nn.Sequential(linear(), Save('s'), linear(), Load('s', 'add'), linear())
    model[0].requires_grad_(False)
    sent = Sent(monkeypatch)
    GPipe(model, [2, 1, 2], devices=virtual(3))(torch.rand(2, 4)).sum().backward()
    back = [size for message, size in sent.of_skips().items() if message.what == 'gradient of skip s']
    assert back == [0] and len(sent.of_skips()) == 2


def test_on_one_device_a_skip_is_not_copied(monkeypatch) -> None:
    model = nn.Sequential(linear(), Save('s'), linear(), nn.Tanh(), Load('s', 'add'), linear())
    seen = []
    monkeypatch.setattr(Load, 'merge', lambda self, x, skip: seen.append(skip) or x + skip)
    monkeypatch.setattr(Save, 'forward', lambda self, x, save=Save.forward: seen.append(save(self, x)) or x)
    for schedule, devices in (('v-shape', 2), ('gpipe', 4)):
        seen.clear()
        pipeline = Pipeline(copy.deepcopy(model), [2, 1, 1, 2], schedule=schedule, devices=['cpu'] * devices,
                            loss_fn=mse)
        pipeline.step(torch.rand(3, 4), torch.rand(3, 4))
        saved, loaded = (tensor.data_ptr() for tensor in seen)
        assert (saved == loaded) == (schedule == 'v-shape')


# Nothing is left


def contents(device: Device) -> list:
    """What the thread of a device still remembers, and the caller's."""
    box: list = []
    device.submit(lambda: box.append(list(_thread.saved)))
    device.submit(lambda: box.append('done'))
    while box[-1:] != ['done']:
        pass
    return [*box[:-1], list(_thread.saved)]


@settings(max_examples=15)
@given(skip_cases(), st.sampled_from([None, FORWARD, BACKWARD]), st.data())
def test_nothing_is_left_after_a_step_or_an_error(case: SkipCase, when: str | None, data) -> None:
    model, failing = case.model(), Failing()
    position = data.draw(evenly(0, len(model)))
    layers = [*model[:position], failing, *model[position:]]
    devices = virtual(len(case.balance))
    for device in devices:
        device.meter()
    pipeline = GPipe(nn.Sequential(*layers), [case.balance[0] + 1, *case.balance[1:]], chunks=case.chunks,
                     checkpoint='never', devices=devices, skips=case.skips)
    failing.fail(when, case.micro_batches - 1, ArithmeticError('on purpose'))
    x = case.inputs()
    try:
        pipeline(x).sum().backward()
    except (ArithmeticError, RuntimeError):   # (or nothing needs a gradient)
        pass
    pipeline.zero_grad()
    failing.recover()   # the error holds the frames that it came through
    del x
    gc.collect()
    for device in devices:
        assert contents(device) == [[], []]
        assert device.ledger.allocated == device.ledger.parameters
    with torch.no_grad():
        assert torch.equal(pipeline(case.inputs()), case.pipeline()(case.inputs()))


# Plain


@given(networks(), st.data())
def test_a_forward_that_failed_does_not_confuse_the_next(layers, data) -> None:
    failing = Failing()
    case = SkipCase(layers, (len(layers),), 2, 1, 'never')
    for kind in (nn.Sequential, SkipSequential):
        model = case.model()
        position = data.draw(evenly(0, len(model)))
        model = kind(*model[:position], failing, *model[position:])
        failing.fail(FORWARD, 0, ArithmeticError('on purpose'))
        with pytest.raises(ArithmeticError):
            model(case.inputs())
        if kind is SkipSequential:
            assert _thread.saved == []
        failing.recover()
        for _ in range(2):
            assert torch.equal(model(case.inputs()), case.model()(case.inputs()))


def test_another_model_of_the_same_names_is_not_confused_by_a_failure_either() -> None:
    first, second = (nn.Sequential(Save('s'), linear(), failing, Load('s', 'add'))
                     for failing in (Failing(), nn.Tanh()))
    first[2].fail(FORWARD, 0, ArithmeticError('on purpose'))
    x = torch.rand(2, 4)
    with pytest.raises(ArithmeticError):
        first(x)
    assert torch.equal(second(x), second[2](second[1](x)) + x)


def test_models_with_skips_nest() -> None:
    inner = SkipSequential(Save('s'), linear(), Load('s', 'add'))
    outer = SkipSequential(Save('s'), inner, Load('s', 'add'))
    x = torch.rand(2, 4)
    assert torch.equal(outer(x), inner[1](x) + x + x)


SEQUENCES = {
    'finds no skip of that name': [linear(), Load('s')],
    'and then not loaded': [Save('s'), linear()],
    'not loaded as often': [Save('s', loads=2), linear(), Load('s', 'add')],
    'saved again before it has been loaded': [Save('s'), Save('s'), Load('s', 'add'), Load('s', 'add')],
}
INSIDE = {
    'one end inside a layer': [nn.Sequential(linear(), Save('s')), linear(), Load('s', 'add')],
    'has one end inside': [Save('s'), nn.Sequential(linear(), Load('s', 'add'))],
}


@pytest.mark.parametrize('wrong', [*SEQUENCES, *INSIDE])
def test_skips_that_do_not_match_are_told_in_a_sentence_before_anything_runs(wrong: str) -> None:
    layers = {**SEQUENCES, **INSIDE}[wrong]
    for make in (lambda: verify_skips(nn.Sequential(*layers)),
                 lambda: GPipe(nn.Sequential(*layers), [1] * len(layers)),
                 lambda: Pipeline(nn.Sequential(*layers), [1] * len(layers), loss_fn=mse)):
        with pytest.raises(ValueError, match=wrong):
            make()


@pytest.mark.parametrize('wrong', SEQUENCES)
def test_they_are_told_when_the_plain_model_runs_too(wrong: str) -> None:
    with pytest.raises(ValueError, match='not loaded as often' if wrong.startswith('and') else wrong):
        SkipSequential(*SEQUENCES[wrong])(torch.rand(2, 4))


def test_skips_inside_a_layer_are_that_layers_own() -> None:
    block = nn.Sequential(Save('s'), linear(), Load('s', 'add'))
    model = nn.Sequential(block, linear(), copy.deepcopy(block))
    assert verify_skips(model) == [] and routes(model, [1, 1, 1]) == ()
    x = torch.rand(4, 4)
    assert torch.equal(GPipe(copy.deepcopy(model), [1, 1, 1], devices=virtual(3), chunks=1)(x), model(x))


def test_a_name_may_be_used_again_when_it_has_been_loaded() -> None:
    model = nn.Sequential(Save('s'), linear(), Load('s', 'add'), Save('s'), linear(), Load('s', 'add'))
    assert routes(model, [1, 1, 2, 1, 1]) == (Skip('s', 0, 2), Skip('s', 2, 4))
    x = torch.rand(4, 4)
    pipeline = GPipe(copy.deepcopy(model), [1, 1, 2, 1, 1], devices=virtual(5), chunks=1)
    assert torch.equal(pipeline(x), model(x))


def test_a_skip_that_is_changed_in_place_is_refused() -> None:
    layers = [linear(), Save('s'), nn.ReLU(inplace=True), Load('s', 'add')]
    for model in (nn.Sequential(*layers), GPipe(nn.Sequential(*layers), [3, 1], devices=virtual(2))):
        with pytest.raises(RuntimeError, match="the skip 's' was changed in place"):
            model(torch.rand(2, 4))


@pytest.mark.parametrize('make, message', [
    (lambda: Save(''), 'a text of 1 to 200 bytes'), (lambda: Save('é' * 101), 'a text of 1 to 200 bytes'),
    (lambda: Load(3), 'a text of'), (lambda: Save('s', 0), 'at least once'),
    (lambda: Load('s', 'multiply'), "combine is 'cat' or 'add'"),
    (lambda: routes(nn.Sequential(linear()), [1], 'around'), "skips go 'straight' or 'through'"),
    (lambda: with_skips(gpipe(2, 1), [Skip('s', 1, 1)]), 'from a stage to a later one of the 2')])
def test_wrong_arguments_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_only_a_tensor_is_saved() -> None:
    with pytest.raises(TypeError, match=r"Save\('s'\) takes one tensor, not a tuple"):
        SkipSequential(Save('s'))((torch.rand(2), 3))


def test_a_load_of_another_sort_is_a_subclass() -> None:
    class Crop(Load):
        def merge(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
            return x + skip[:, :2]
    model = nn.Sequential(Save('s'), nn.Linear(4, 2), Crop('s'))
    x = torch.rand(3, 4)
    assert torch.equal(model(x), model[1](x) + x[:, :2])
    assert torch.equal(GPipe(copy.deepcopy(model), [1, 1, 1], chunks=1, devices=virtual(3))(x), model(x))


# Schedules


@st.composite
def with_random_skips(draw, names=tuple(SCHEDULES)) -> Schedule:
    bare = draw(schedules(names))
    pairs = st.tuples(st.integers(0, bare.stages - 1), st.integers(0, bare.stages - 1)).filter(
        lambda pair: pair[0] < pair[1])
    drawn = draw(st.lists(pairs, max_size=4)) if bare.stages > 1 else []
    return with_skips(bare, [Skip(f's{k}', *pair) for k, pair in enumerate(drawn)])


@given(with_random_skips())
def test_skips_bring_no_deadlock_and_no_wait_if_they_are_free(schedule: Schedule) -> None:
    verify_no_deadlock(schedule)
    verify_no_deadlock(with_messages(schedule))
    check_messages = with_messages(schedule)
    assert sum(bool(op.message and skip_name(op.message.what)) for op in check_messages) == (
        4 * len(schedule.skips) * schedule.micro_batches)   # sent, received; forwards, backwards
    assert simulate(schedule) == simulate(with_skips(schedule, ()))


@given(with_random_skips(FLUSHING))
def test_check_accepts_them_and_misses_none(schedule: Schedule) -> None:
    check(schedule)
    whole = with_messages(schedule)
    check(whole)
    if schedule.skips:
        lost = next(op for op in whole if op.message and skip_name(op.message.what))
        with pytest.raises(ValueError, match='lacks the message'):
            check(whole.select(lambda op: op != lost))


@given(st.integers(2, 6), st.integers(1, 9), st.integers(0, 9), st.integers(1, 5), st.integers(1, 5))
def test_simulated_seconds_of_naive_and_straight_skips(n: int, a: int, s: int, forward: int,
                                                       backward: int) -> None:
    """With one micro-batch. Through: activation and skip share every link. Straight: the skip is there
    before the activation, unless its link is the longer way."""
    costs = Costs(F=forward, B=backward, message=a, skips={'s': s}, bandwidth=1.0)
    through = [Skip('s', k, k + 1) for k in range(n - 1)]
    assert simulate(with_skips(gpipe(n, 1), through), costs).makespan == (
        n * (forward + backward) + 2 * (n - 1) * (a + s))
    if n > 2:   # (between neighbours there is one link)
        ways = [max(s, (n - 2) * seconds + (n - 1) * a) for seconds in (forward, backward)]
        assert simulate(with_skips(gpipe(n, 1), [Skip('s', 0, n - 1)]), costs).makespan == (
            2 * (forward + backward) + sum(ways))


@given(st.integers(1, 6), st.integers(1, 12))
def test_in_a_v_mirror_images_share_a_device_and_skips_between_them_are_free(n: int, m: int) -> None:
    schedule = v_shape(2 * n, m)
    assert all(schedule.device_of[s] == schedule.device_of[2 * n - 1 - s] for s in range(n))
    skips_ = [Skip(f's{k}', k, 2 * n - 1 - k) for k in range(n)]
    costs = Costs(bandwidth=1.0, message=1, skips={skip.name: 1e6 for skip in skips_})
    assert simulate(with_skips(schedule, skips_), costs) == simulate(schedule, costs)


# Balance


@given(networks(), st.data())
def test_layers_with_skips_are_profiled_one_by_one(layers, data) -> None:
    case = SkipCase(layers, (len(layers),), 2, 1, 'never')
    model = case.model()
    costs = profile(model, case.inputs(), timeout=0)
    with torch.no_grad():
        value = case.inputs()
        for layer, cost in zip(model, costs):
            value = layer(value)
            assert cost.output_bytes == bytes_in(value)
    parts = data.draw(evenly(1, len(layers)))
    assert sum(balance_by_time(parts, model, case.inputs(), timeout=0)) == len(layers)
    assert sum(balance_by_size(parts, model, case.inputs())) == len(layers)


def test_saved_bytes_of_a_skip_belong_to_what_saves_them() -> None:
    x = torch.rand(8, 4, requires_grad=True)
    model = nn.Sequential(nn.Tanh(), Save('s'), nn.Tanh(), Load('s', torch.mul), nn.Tanh())
    assert [cost.saved_bytes // (8 * 4 * 4) for cost in profile(model, x, timeout=0)] == [1, 0, 1, 1, 1]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=11), st.data())
def test_a_mirrored_cut_is_the_best_of_all_mirrored_cuts(costs: list[int], data) -> None:
    half, odd = divmod(len(costs), 2)
    devices = data.draw(st.integers(1, half))

    def worst(balance) -> int:
        edges = [sum(balance[:k]) for k in range(len(balance) + 1)]
        stages = [sum(costs[a:b]) for a, b in zip(edges, edges[1:])]
        return max(one + other for one, other in zip(stages[:devices], reversed(stages)))

    def mirrored(cuts) -> list[int]:
        edges = [0, *cuts, half]
        first = [b - a for a, b in zip(edges, edges[1:])]
        return [*first, *reversed(first[1:]), first[0] + odd]

    found = cut_mirrored(costs, devices)
    assert sum(found) == len(costs) and found == mirrored([sum(found[:k]) for k in range(1, devices)])
    assert worst(found) == min(worst(mirrored(cuts)) for cuts in combinations(range(1, half), devices - 1))
