"""Every system of `./workshop.py compare --all`: the same work, the figures of a row, the sweeps, the verdicts."""

import io
import threading
import time
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from fewgpu import Pipeline
from fewgpu.device import get_devices
from fewgpu.spill import Spilled
from fewgpu.workshop.systems import everyone, sweeps, trainers, verdicts, work
from fewgpu.workshop.systems.work import Work, settle_norms


class Small(Work):
    """A small network of linear layers in place of a ResNet, and mini-batches of noise."""

    def model(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 10))

    @property
    def batches(self):
        torch.manual_seed(self.seed + 1)
        x, y = torch.rand(self.samples, 1, 28, 28), torch.randint(10, (self.samples,))
        return [*zip(x.split(self.batch), y.split(self.batch))][:self.samples // self.batch]

    def accuracy(self, state) -> float:
        self.model().load_state_dict(state)   # of the plain model, all of it
        return 0.0


def small(stages: int, batch: int, chunks: int, seed: int = 0) -> Small:
    balance = {1: (6,), 2: (2, 4), 3: (2, 2, 2), 4: (2, 1, 2, 1)}[stages]
    return Small('small', stages, balance, batch, chunks, 5 * batch, 4, seed, pace=1.0)


LATE = {'model-parallel': lambda stages: 0, 'gpipe': lambda stages: 0, '1f1b': lambda stages: 0,
        'pipedream': lambda stages: stages - 1, '2bw': lambda stages: 1}


@st.composite
def works(draw: st.DrawFn) -> Small:
    stages = draw(st.integers(1, 4))
    chunks = draw(st.integers(stages, 6))
    return small(stages, draw(st.integers(1, 4)) * chunks, chunks, draw(st.integers(0, 99)))


@pytest.mark.slow
@settings(max_examples=10)
@given(works())
def test_synchronous_systems_do_what_plain_does_and_others_are_as_late_as_their_schedule(todo: Small) -> None:
    wanted = trainers.SYSTEMS['plain'][1](todo)
    for key in (*LATE, 'spilled'):
        got = trainers.SYSTEMS[key][1](todo)
        assert got.staleness == LATE.get(key, lambda _: 0)(todo.devices), key
        if got.staleness == 0:
            same(got, wanted)
        if key == 'spilled':
            assert len(got.peak) == len(got.busy) == 1 and got.peak[0] > 0
        else:   # weights, gradients and momentum of the own layers
            assert len(got.busy) == todo.devices
            assert all(peak >= 12 * count for peak, count in zip(got.peak, counts(todo), strict=True))
        assert all(0 < share < 1 + 1e-6 for share in got.busy)


@pytest.mark.slow
@pytest.mark.parametrize('ranks, zero', [(2, 0), (3, 0), (2, 3), (3, 3)])
def test_systems_on_ranks_do_what_plain_does(ranks: int, zero: int) -> None:
    todo = small(ranks, 6, 6)
    got, wanted = trainers.on_ranks(todo, zero), trainers.plain(todo)
    same(got, wanted)
    assert got.staleness == 0 and len(got.busy) == len(got.peak) == ranks
    assert all(0 < share < 1 + 1e-6 for share in got.busy)
    assert all(peak >= 12 * sum(counts(todo)) / (ranks if zero else 1) for peak in got.peak)


def same(got: work.Outcome, wanted: work.Outcome) -> None:
    assert got.loss == pytest.approx(wanted.loss, rel=1e-4)   # of the last mini-batch, all of it
    assert got.state.keys() == wanted.state.keys()
    for name, tensor in wanted.state.items():
        torch.testing.assert_close(got.state[name], tensor, rtol=1e-3, atol=1e-5)


def counts(todo: Small) -> list[int]:
    """Parameters of every stage."""
    layers, first = todo.model(), 0
    sizes = []
    for layer_count in todo.balance:
        stage = layers[first:first + layer_count]
        sizes.append(sum(parameter.numel() for parameter in stage.parameters()))
        first += layer_count
    return sizes


class Clock(threading.local):
    """Seconds for which this thread has computed: only those that layers say."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def compute(self, seconds: float) -> None:
        self.seconds += seconds


class _Costly(torch.autograd.Function):
    """Nothing, for 2 ms of that clock forward and 4 ms backward."""

    @staticmethod
    def forward(ctx, x, clock):
        ctx.clock = clock
        clock.compute(0.002)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.compute(0.004)
        return gradient, None


class Costly(nn.Linear):
    def __init__(self, clock: Clock) -> None:
        super().__init__(3, 3)
        self.clock = clock

    def forward(self, x):
        return _Costly.apply(super().forward(x), self.clock)


@pytest.mark.parametrize('pace', [None, 0.5, 0.2])
@pytest.mark.parametrize('way', ['plain', 'pipeline', 'spilled'])
def test_a_device_counts_what_it_computes_by_its_pace_and_nothing_else(way, pace, monkeypatch):
    clock, stages, chunks = Clock(), 3, 2
    monkeypatch.setattr('fewgpu.device.time.thread_time', clock)
    model, x = nn.Sequential(*(Costly(clock) for _ in range(stages))), torch.ones(4, 3)
    places = get_devices(stages if way == 'pipeline' else 1, kind='cpu', pace=pace)
    if way == 'plain':
        begun = time.perf_counter()
        with places[0].active(), places[0].paced():
            model(x).sum().backward()
        assert places[0].computed <= time.perf_counter() - begun or pace is None
    elif way == 'pipeline':
        trainer = Pipeline(model, [1] * stages, schedule='1f1b', chunks=chunks, devices=places, loss_fn=work.loss_fn,
                           optimizer=work.sgd)
        trainer.step(x, torch.zeros(4, dtype=torch.long))
        for index, device in enumerate(places):   # a span holds the time that it slept, too
            assert device.computed <= trainer.trace.busy(index) * (1 + 1e-9) or pace is None
    else:
        Spilled(model, [1] * stages, device=places[0], loss_fn=work.loss_fn).step(x, torch.zeros(4, dtype=torch.long))
    forwards = {'plain': stages, 'pipeline': chunks, 'spilled': 2 * stages - 1}[way]   # every shard but the last: twice
    backwards = {'plain': stages, 'pipeline': chunks, 'spilled': stages}[way]
    for device in places:
        assert device.computed == pytest.approx((0.002 * forwards + 0.004 * backwards) / (pace or 1.0))


def test_norms_are_settled_by_the_inputs_alone():
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.BatchNorm1d(3)), [5 + 2 * torch.randn(8, 3) for _ in range(4)]
    model(100 * torch.randn(8, 3))   # what training left
    settle_norms(model, inputs)
    torch.testing.assert_close(model[0].running_mean, torch.stack([x.mean(0) for x in inputs]).mean(0))
    torch.testing.assert_close(model[0].running_var, torch.stack([x.var(0) for x in inputs]).mean(0))


@given(batch=st.integers(1, 70_000), devices=st.integers(1, 8))
def test_sweeps_ask_for_rows_that_there_are(batch, devices):
    todo = Work('resnet18', devices, (1,) * devices, batch, 8, batch, 1)
    sizes, counts = sweeps.batch_sizes(todo), sweeps.chunk_counts(min(batch, sweeps.MOST))
    assert sizes == sorted(set(sizes)) and min(sizes) >= max(1, devices)
    assert max(sizes) * (work.WARM_UP + sweeps.MINI_BATCHES) <= 60_000
    assert counts[0] == 1 and counts[-1] <= batch and all(b == 2 * a for a, b in zip(counts, counts[1:]))


def rows(speed=10.0) -> dict:
    return {key: {'samples_per_second': speed, 'busy': [0.5], 'peak': [1_000_000], 'staleness': 0, 'loss': 1.0,
                  'accuracy': 0.5} for key in everyone.NAMES}


@pytest.mark.parametrize('width', [80, 120])
def test_the_table_has_every_system_in_order_and_fits(width):
    console = Console(file=io.StringIO(), width=width)
    found = rows()
    for one in found.values():
        one['busy'], one['peak'] = [0.99] * 4, [123_000_000] * 4
    del found['zero']
    console.print(everyone.table(found))
    told = console.file.getvalue()
    places = [told.find(name.split()[0].rstrip(',')) for name in everyone.NAMES.values()]
    assert -1 not in places and told.count('failed') == 1
    assert all(len(line.rstrip()) <= width for line in told.splitlines())


def test_conclusions_rest_on_the_worst_moment_and_of_gpus_it_is_said_that_it_is_not_known():
    todo = Work('resnet18', 2, (1, 1), 8, 8, 64, 1)
    for shares in permutations((0.9, 0.95, 0.5)):
        steady, why = everyone.is_steady(shares, 0, todo)
        assert not steady and '50%' in why and 'no conclusions' in why
    assert everyone.is_steady([0.9, 0.8], 0, todo)[0]
    for gpus in (1, 2, 3):
        steady, why = everyone.is_steady([None] * 3, gpus, todo)
        assert steady == (gpus >= 2) == ('no conclusions' not in why) and 'was not measured' in why


@pytest.mark.parametrize('shares, steady', [([0.9] * 12, True), ([0.9] * 11 + [0.2], False)])
def test_all_are_run_in_order_and_one_busy_moment_withholds_verdicts(shares, steady, tmp_path, monkeypatch, capsys):
    ran, left = [], iter(shares)
    found = rows() | {'sweep-chunks': {'counts': [1, 2, 4], 'speeds': [1.0, 3.0, 1.0]},
                      'sweep-batch': {'sizes': [2, 4, 8], 'plain': [1, 1, 1], 'pipeline': [1, 2, 3],
                                      'plain_bytes': [2, 4, 8], 'pipeline_bytes': [1, 2, 4]},
                      'sweep-depth': {'depths': [1, 2], 'per_device': [2.0, 1.0], 'bytes': [2, 1]}}
    for key in verdicts.PIPELINES:
        found[key] = found[key] | {'samples_per_second': 20.0}
    monkeypatch.setattr(everyone, '_one', lambda console, key, *_: ran.append(key) or found[key])
    monkeypatch.setattr(everyone, 'efficiency', lambda todo: next(left))
    assert everyone.compare_all(Console(width=100), Work('resnet18', 2, (1, 1), 8, 8, 64, 1), tmp_path)
    said = capsys.readouterr().out
    assert ran == [*trainers.SYSTEMS, *sweeps.SWEEPS] and not [*left]   # it was asked before every one
    assert {path.name for path in tmp_path.iterdir()} == {'systems.png', 'systems.json'}
    assert (said.count('not decided here') == 0) == steady == ('no conclusions' not in said)
    assert all(claim in said for claim in ('C46', 'C15', 'C22', 'C32', 'C05'))


@given(speeds=st.lists(st.floats(1.0, 100.0), min_size=3, max_size=7))
def test_an_optimum_is_between_slower_ends(speeds):
    got, best = verdicts.optimum(speeds), max(speeds)
    low = (1 - verdicts.NOISE) * best
    assert (got is True) == (max(speeds[0], speeds[-1]) < low)
    assert (got is None) == (min(speeds[0], speeds[-1]) >= low)


def test_verdicts_of_optimum_larger_and_growth_can_be_no():
    assert verdicts.optimum([1.0, 2.0, 4.0]) is False and verdicts.optimum([4.0, 2.0, 1.0]) is False
    assert verdicts.larger([1, 2, 4], [10, 20, 40], [5, 10, 20]) == (2, 4)
    assert verdicts.larger([1, 2, 4], [10, 20, 40], [10, 20, 40]) == (2, 2)
    assert verdicts.larger([1, 2, 4], [10, 20, 40], [90, 91, 92]) == (2, 0)
    assert verdicts.grows({'a': [0.0, 0.2, 0.4]}) and not verdicts.grows({'a': [0.0, 0.2, 0.21]})
    assert not verdicts.grows({'a': [0.0, 0.2, 0.4], 'b': [0.0, 0.0, 0.0]})


def told(capsys, found, steady) -> dict[str, str]:
    verdicts.conclude(found, steady)
    lines = capsys.readouterr().out.splitlines()
    heads = [at for at, line in enumerate(lines) if line[3:4] == ':']   # a finding is indented, below its claim
    return {lines[at][:3]: next(line.strip() for line in lines[at:] if line.startswith('  ')) for at in heads}


def test_no_verdict_from_seconds_on_an_unsteady_machine_and_c46_wants_every_pipeline(capsys):
    found = rows() | {'sweep-chunks': {'counts': [1, 2, 4], 'speeds': [1.0, 3.0, 1.0]}}
    for key in verdicts.PIPELINES:
        found[key] = found[key] | {'samples_per_second': 20.0}
    steady = told(capsys, found, True)
    unsteady = told(capsys, found, False)
    found['gpipe'] = found['gpipe'] | {'samples_per_second': 10.2}
    tied = told(capsys, found, True)
    assert tied['C46'].split(':')[0] == unsteady['C46'].split(':')[0]   # noise may be all of it
    found['gpipe'] = found['gpipe'] | {'samples_per_second': 5.0}
    slower = told(capsys, found, True)
    assert steady['C46'].split(':')[0] == steady['C15'].split(':')[0] != slower['C46'].split(':')[0]
    assert unsteady['C46'].split(':')[0] == unsteady['C15'].split(':')[0]
    assert unsteady['C46'].split(':')[0] not in (steady['C46'].split(':')[0], slower['C46'].split(':')[0])
