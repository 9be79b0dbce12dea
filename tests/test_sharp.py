"""Many models on few devices: the planner's laws in virtual time, and real training that equals training alone."""

import functools
import math
import threading
from collections import defaultdict
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu.device import Device
from fewgpu.link import Link
from fewgpu.spill.lrtf import Chain, Lrtf, plan
from fewgpu.spill import Job, sharp
from fewgpu.spill import Spilled
from tests.reference import differences
from tests.test_spill import Breaks, data, deep, mean_square

seconds = st.integers(1, 9)


@st.composite
def chains(draw, most=4, units=seconds, loads=True):
    found = []
    for _ in range(draw(st.integers(1, most))):
        count = 2 * draw(st.integers(1, 3)) - 1
        found.append(Chain(draw(st.lists(units, min_size=count, max_size=count)), draw(st.integers(1, 3)),
                           draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)) if loads else None))
    return found


def length(chain):
    return sum(chain.units) * chain.batches


# plans

@given(chains(), st.integers(1, 4), st.booleans())
def test_every_unit_runs_once_in_order_and_a_model_is_on_one_device_at_a_time(models, devices, prefetch):
    done = plan(models, devices, prefetch=prefetch).done
    for index, chain in enumerate(models):
        mine = sorted((one for one in done if one.model == index), key=lambda one: one.start)
        assert [one.number for one in mine] == list(range(len(chain.units) * chain.batches))
        assert all(a.end <= b.start for a, b in zip(mine, mine[1:]))
        assert [one.end - one.start for one in mine] == [*chain.units] * chain.batches
    for device in range(devices):
        mine = sorted((one for one in done if one.device == device), key=lambda one: one.start)
        assert all(a.end <= b.start for a, b in zip(mine, mine[1:]))


@given(chains(), st.integers(1, 4), st.booleans())
def test_no_plan_is_shorter_than_the_work_allows(models, devices, prefetch):
    longest = max(map(length, models))
    assert plan(models, devices, prefetch=prefetch).makespan >= max(sum(map(length, models)) / devices, longest)


@given(chains(loads=False), st.integers(1, 4), st.booleans())
def test_no_device_idles_while_a_model_waits(models, devices, prefetch):
    done = plan(models, devices, prefetch=prefetch).done
    for now in {one.start for one in done} | {one.end for one in done}:
        busy = {one.model for one in done if one.start <= now < one.end}
        waiting = sum(any(one.end > now for one in done if one.model == model)
                      for model in range(len(models)) if model not in busy)
        assert len(busy) == devices or not waiting


@settings(max_examples=100)
@given(chains(most=6, units=st.just(1), loads=False), st.integers(1, 4))
def test_with_equal_units_nothing_is_faster(models, devices):   # Hu 1961
    best = max(math.ceil(sum(map(length, models)) / devices), max(map(length, models)))
    assert plan(models, devices, prefetch=False).makespan == best


def optimum(models, devices):
    """The shortest makespan of all schedules, by trying every one: at each moment any free models may start."""
    work = [list(chain.units) * chain.batches for chain in models]

    @functools.cache
    def shortest(done, busy):   # busy: (seconds left, model), sorted
        if not busy and all(k == len(units) for k, units in zip(done, work)):
            return 0
        ways = []
        running = {model for _, model in busy}
        if len(busy) < devices:
            for model, k in enumerate(done):
                if k < len(work[model]) and model not in running:
                    ways.append(shortest(done, tuple(sorted((*busy, (work[model][k], model))))))
        if busy:
            step = busy[0][0]
            ended = {model for left, model in busy if left == step}
            ways.append(step + shortest(tuple(k + (m in ended) for m, k in enumerate(done)),
                                        tuple((left - step, model) for left, model in busy if left > step)))
        return min(ways)

    return shortest((0,) * len(models), ())


@settings(max_examples=40)
@given(chains(most=3, loads=False), st.integers(1, 3), st.booleans())
def test_a_plan_is_within_grahams_bound_of_the_best_of_all(models, devices, prefetch):
    assume(sum(len(chain.units) * chain.batches for chain in models) <= 15)
    best = optimum(models, devices)
    found = plan(models, devices, prefetch=prefetch).makespan
    assert best <= found <= (2 - 1 / devices) * best


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 4), st.lists(seconds, min_size=3, max_size=3),
       st.booleans())
def test_equal_models_no_fewer_than_devices_keep_all_of_them_busy(devices, more, batches, units, prefetch):
    models = [Chain(units, batches)] * (devices + more)
    found = plan(models, devices, prefetch=prefetch)
    waste = found.makespan * devices - sum(map(length, models))
    assert waste <= (devices - 1) * length(models[0])
    if more == 0:
        assert found.utilisation == pytest.approx(1.0)


@given(seconds, st.integers(0, 9), st.integers(2, 5), st.integers(1, 3))
def test_double_buffering_hides_loads_as_the_closed_form_says(unit, load, shards, batches):
    """One model on one device: without, every unit waits for its load; with, only what is longer than a unit shows,
    and in each mini-batch the first, whose shard has just been in use and is to be updated."""
    count = 2 * shards - 1
    chain = Chain([unit] * count, batches, [load] * count)
    assert plan([chain], 1, prefetch=False).makespan == batches * count * (unit + load)
    shown = batches * (load + (count - 1) * max(0, load - unit))
    assert plan([chain], 1).makespan == batches * count * unit + shown


@given(chains(most=5), st.integers(1, 3))
def test_decisions_go_to_the_longest_that_is_free(models, devices):
    """What is taken, and not chosen before, has the longest remaining time of those that nobody has."""
    lrtf, running = Lrtf(models), {}
    for turn in range(200):
        device = turn % devices
        if device in running:
            model = running.pop(device)
            lrtf.finish(model, models[model].units[0])
        free = {m for m in range(len(models)) if lrtf.left(m) and m not in running.values()}
        remaining = {m: lrtf.remaining(m) for m in free}
        taken = lrtf.take(device)
        assert (taken is None) == (not free)
        if taken:
            running[device] = taken[0]
            assert taken[0] in free and remaining[taken[0]] == max(remaining.values())
    assert lrtf.over or running


def test_a_device_that_would_idle_takes_what_was_chosen_for_another():
    lrtf = Lrtf([Chain([5.0], 2), Chain([5.0], 2)])
    assert lrtf.take(0) == (0, 0)
    assert lrtf.choose(0) == (1, 0)
    assert lrtf.take(1) == (1, 0)
    lrtf.finish(0, 5.0)
    assert lrtf.take(0) == (0, 1)


@given(chains(), st.integers(1, 4))
def test_a_timeline_shows_what_was_done(models, devices):
    shared = plan(models, devices)
    assert shared.timeline.makespan == shared.makespan
    assert shared.utilisation == pytest.approx(sum(map(length, models)) / shared.makespan / devices)


@pytest.mark.parametrize('wrong', [lambda: Chain([1.0, 2.0]), lambda: Chain([-1.0]), lambda: Chain([1.0], 1, [1, 2]),
                                   lambda: plan([Chain([None])], 1), lambda: plan([], 0)])
def test_plans_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError):
        wrong()


# real training

OPTIMIZER = partial(torch.optim.Adam, lr=0.05)


def spilled(seed: int, layers: int, shards: int, **options) -> Spilled:
    torch.manual_seed(seed)
    model = deep(layers)
    model.insert(1, nn.Dropout(0.3))
    model.insert(2, nn.BatchNorm1d(8))
    cuts = [len(model) * s // shards for s in range(shards + 1)]
    return Spilled(model, [b - a for a, b in zip(cuts, cuts[1:])], loss_fn=mean_square, optimizer=OPTIMIZER,
                   **options)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans()), min_size=1,
                max_size=4), st.integers(1, 3), st.booleans())
def test_every_model_is_trained_as_it_would_be_alone(models, devices, prefetch):
    batches = [data(3) for _ in range(2)]
    together = [spilled(k, layers, shards, inputs_on_host=on_host)
                for k, (layers, shards, _, on_host) in enumerate(models)]
    places = [Device(index=d, memory_limit=10**6, link=Link(1e-5, 1e9)) for d in range(devices)]
    trained = sharp([Job(model, batches, epochs, seed=k) for k, (model, (*_, epochs, _)) in
                     enumerate(zip(together, models))], places, prefetch=prefetch)

    for k, (layers, shards, epochs, _) in enumerate(models):
        alone, generator = spilled(k, layers, shards, device=Device()), torch.Generator().manual_seed(k)
        losses = [alone.step(x, y, generator=generator) for _ in range(epochs) for x, y in batches]
        assert differences((trained.losses[k], dict(together[k].state_dict()), together[k].optimizer_state()),
                           (losses, dict(alone.state_dict()), alone.optimizer_state())) == []
    assert [device.ledger.allocated for device in places] == [0] * devices
    by_model, by_device = defaultdict(list), defaultdict(list)
    for one in sorted(trained.shared.done, key=lambda one: one.start):
        by_model[one.model].append(one)
        by_device[one.device].append(one)
    for k, mine in by_model.items():
        assert [one.number for one in mine] == list(range(len(together[k].units) * 2 * models[k][2]))
    assert all(a.end <= b.start for rows in (by_model, by_device) for row in rows.values()
               for a, b in zip(row, row[1:]))


@given(st.integers(1, 3), st.booleans())
def test_seeds_are_drawn_from_torchs_generator_in_the_order_of_the_jobs(devices, prefetch):
    batches = [data(3)]
    losses = []
    for count in (devices, 1):
        torch.manual_seed(7)
        seeds = torch.get_rng_state()
        models = [spilled(k, 2, 2) for k in range(3)]
        torch.set_rng_state(seeds)
        losses.append(sharp([Job(model, batches) for model in models], [Device(index=d) for d in range(count)],
                            prefetch=prefetch).losses)
    assert differences(*losses) == []


@pytest.mark.parametrize('when', 'FB')
@pytest.mark.parametrize('devices', (1, 3))
@pytest.mark.parametrize('prefetch', (True, False))
def test_a_unit_that_raises_ends_all_and_says_where(when, devices, prefetch):
    broken = deep(3)
    broken.insert(3, Breaks(when))
    models = [spilled(k, 2, 3) for k in range(3)]
    models.append(Spilled(broken, [2, 2, 3], loss_fn=mean_square))
    jobs = [Job(model, [data(2)] * 50, name=f'network {k}') for k, model in enumerate(models)]
    with pytest.raises(ArithmeticError, match='broken') as caught:
        sharp(jobs, [Device(index=d) for d in range(devices)], prefetch=prefetch)
    notes = '\n'.join(caught.value.__notes__)
    assert 'in shard 1 of network 3 on CPU' in notes
    assert "raise ArithmeticError('broken')" in notes
    assert not [t for t in threading.enumerate() if t.name.startswith(('fewgpu behind', 'fewgpu loader'))]
    models[0].step(*data(2))   # and goes on alone


def test_sharing_that_means_nothing_is_refused():
    model, device = spilled(0, 1, 1), Device()
    for jobs, devices, said in (([Job(model, [])], [], 'one or more'), ([Job(model, [])], [device, device], 'once'),
                                ([Job(model, []), Job(model, [])], [device], 'same one')):
        with pytest.raises(ValueError, match=said):
            sharp(jobs, devices)


def test_fewer_mini_batches_than_said_is_an_error():
    class Short(list):
        def __len__(self):
            return 3

    with pytest.raises(ValueError, match='short has 1 mini-batches, and said 3'):
        sharp([Job(spilled(0, 1, 1), Short([data(2)]), name='short')], [Device()])


def test_a_shard_too_large_for_a_device_is_named():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        sharp([Job(spilled(0, 2, 2), [data(2)], name='large')], [Device(memory_limit=100)])
    assert 'in shard 0 of large on CPU 0, load of its forward' in caught.value.__notes__


@pytest.mark.parametrize('prefetch', (True, False))
def test_an_update_that_fails_is_an_error_of_its_own_model(prefetch):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise OSError('no update')

    models = [spilled(0, 2, 3), Spilled(deep(2), [1, 3], loss_fn=mean_square, optimizer=lambda ps: Fails(ps, lr=0.1))]
    with pytest.raises(OSError, match='no update') as caught:
        sharp([Job(model, [data(2)] * 9) for model in models], [Device()], prefetch=prefetch)
    notes = '\n'.join(caught.value.__notes__)
    assert 'in shard 1 of model 1 on CPU 0, store of its' in notes and 'model 0' not in notes


def test_mini_batches_that_fail_are_an_error_of_their_model():
    with pytest.raises(ValueError, match='rows of targets') as caught:
        sharp([Job(spilled(0, 1, 1), [(torch.ones(2, 8), torch.ones(3, 8))], name='odd')], [Device()])
    assert 'in the mini-batches of odd' in caught.value.__notes__


def test_the_mini_batches_of_a_job_are_a_list():
    model = Spilled(nn.Sequential(nn.Linear(1, 1)), [1], device=Device('cpu'), loss_fn=nn.functional.mse_loss)
    with pytest.raises(TypeError, match='are a list of'):
        Job(model, (batch for batch in ()))
    for wrong in (-1, 1.5, None):
        with pytest.raises(ValueError, match='epochs of a job are a whole number'):
            Job(model, [], epochs=wrong)
