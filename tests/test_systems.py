"""Every system of `./workshop.py compare --all`: the same work, the figures of a row, the sweeps, the verdicts."""

import io

import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from fewgpu.device import get_devices
from fewgpu.workshop.compare_files import refuse_unwritable
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
        assert all(0 < share <= 1 for share in got.busy)


@pytest.mark.slow
@pytest.mark.parametrize('ranks, zero', [(2, 0), (3, 0), (2, 3), (3, 3)])
def test_systems_on_ranks_do_what_plain_does(ranks: int, zero: int) -> None:
    todo = small(ranks, 6, 6)
    got, wanted = trainers.on_ranks(todo, zero), trainers.plain(todo)
    same(got, wanted)
    assert got.staleness == 0 and len(got.busy) == len(got.peak) == ranks
    assert all(0 < share <= 1 for share in got.busy)
    assert all(peak >= 12 * sum(counts(todo)) / (ranks if zero else 1) for peak in got.peak)


def same(got: work.Outcome, wanted: work.Outcome) -> None:
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


@given(seconds=st.floats(0.01, 100.0), share=st.floats(0.0, 1.0), pace=st.floats(0.05, 1.0))
@settings(max_examples=30, deadline=None)
def test_a_busy_share_is_of_the_paced_time(seconds, share, pace):
    device, = get_devices(1, kind='cpu', pace=pace)
    assert trainers.computing(device, share * seconds * pace, seconds) == [pytest.approx(share)]


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
                  'accuracy': 0.5} for key in everyone.KEYS}


@pytest.mark.parametrize('width', [80, 120])
def test_the_table_has_every_system_in_order_and_fits(width):
    console = Console(file=io.StringIO(), width=width)
    found = rows()
    for one in found.values():
        one['busy'], one['peak'] = [0.99] * 4, [123_000_000] * 4
    del found['zero']
    console.print(everyone.table(found))
    told = console.file.getvalue()
    places = [told.find(name.split()[0].rstrip(',')) for name in everyone.NAMES]
    assert -1 not in places and told.count('failed') == 1
    assert all(len(line.rstrip()) <= width for line in told.splitlines())


def test_keys_of_the_table_are_those_that_train():
    assert everyone.KEYS == tuple(trainers.SYSTEMS) and everyone.SWEEPS.keys() == sweeps.SWEEPS.keys()
    assert everyone.NAMES == tuple(name for name, _ in trainers.SYSTEMS.values())


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
    found['gpipe'] = found['gpipe'] | {'samples_per_second': 5.0}
    slower = told(capsys, found, True)
    assert steady['C46'].split(':')[0] == steady['C15'].split(':')[0] != slower['C46'].split(':')[0]
    assert unsteady['C46'].split(':')[0] == unsteady['C15'].split(':')[0]
    assert unsteady['C46'].split(':')[0] not in (steady['C46'].split(':')[0], slower['C46'].split(':')[0])


@pytest.mark.parametrize('blocked', ['systems.json', 'reports'])
def test_files_that_cannot_be_written_are_refused_at_once(tmp_path, blocked):
    refuse_unwritable(tmp_path / 'new', ['systems.json'])
    if blocked == 'reports':
        (tmp_path / 'reports').write_text('a file in its place')
    else:
        (tmp_path / blocked).mkdir()
    with pytest.raises(typer.BadParameter, match='cannot write to --out'):
        refuse_unwritable(tmp_path, ['systems.json'])
