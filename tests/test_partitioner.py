"""PipeDream's partitioner finds what trying everything finds, and replays published figures."""

import itertools
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.planner import Chain, Machines, Layer, data_parallel, partition, vgg16_chain
from fewgpu.planner.chain import read, write
from fewgpu.planner.cuts import Cuts

# Whole numbers: their sums are exact, so that what just fits fits here and there.
amounts = st.integers(0, 40)
layers = st.lists(st.builds(Layer, st.just('layer'), amounts, amounts, amounts), min_size=1, max_size=6)
chains = layers.map(Chain)
bandwidths = st.sampled_from([0.5, 1.0, 3.0, 10.0, math.inf])
memories = st.one_of(st.just(math.inf), st.integers(20, 400))


def compositions(total, at_most=None):
    """All tuples of positive integers with this sum (or a sum from 1 to it)."""
    for total in range(1, total + 1) if at_most else [total]:
        for cuts in itertools.product([False, True], repeat=total - 1):
            sizes = [1]
            for cut in cuts:
                sizes = [*sizes, 1] if cut else [*sizes[:-1], sizes[-1] + 1]
            yield tuple(sizes)


def sync(part, count, bandwidth):
    return 4 * (count - 1) / count * sum(layer.weight_bytes for layer in part) / bandwidth


def ways(part, devices, at_most):
    """All (layers, replicas) of stages, in order."""
    for counts in compositions(devices, at_most):
        for sizes in compositions(len(part)):
            if len(sizes) == len(counts):
                stops = list(itertools.accumulate(sizes, initial=0))
                yield [(part[a:b], replicas) for a, b, replicas in zip(stops, stops[1:], counts)]


def seconds_of(way, bandwidth, memory, behind=0, servers=1):
    """Of stages within a server; inf if one does not fit."""
    worst = 0.0
    for number, (part, replicas) in enumerate(way):
        compute = sum(layer.seconds for layer in part)
        worst = max(worst, max(compute, sync(part, replicas, bandwidth)) / replicas)
        if number < len(way) - 1:
            worst = max(worst, 2 * part[-1].output_bytes / bandwidth)
        to_the_end = behind + servers * sum(count for _, count in way[number:])
        held = sum(layer.weight_bytes + layer.output_bytes for layer in part)
        if math.ceil(to_the_end / (servers * replicas)) * held > memory:
            return math.inf
    return worst


def by_trial(part, machines, at_most):
    size, best = machines.in_a_server, math.inf
    for way in ways(part, machines.servers, at_most):
        worst, behind = 0.0, 0
        for number, (inner, servers) in reversed(list(enumerate(way))):
            inside = min((seconds_of(one, machines.bandwidth, machines.memory, behind, servers)
                          for one in ways(inner, size, at_most)), default=math.inf)
            worst = max(worst, max(inside, sync(inner, servers, machines.outside)) / servers)
            if number < len(way) - 1:
                worst = max(worst, 2 * inner[-1].output_bytes / machines.outside)
            behind += servers * size
        best = min(best, worst)
    return best


def check(chain, machines, use_all):
    expected = by_trial(list(chain.layers), machines, not use_all)
    if expected == math.inf:
        with pytest.raises(ValueError, match='no partition of .* fits in .*: give devices more memory'):
            partition(chain, machines, use_all=use_all)
        return
    found = partition(chain, machines, use_all=use_all)
    assert found.slowest_seconds == pytest.approx(expected, rel=1e-12)
    assert sum(found.balance) == len(chain) and [s.first for s in found.stages[1:]] == [
        s.last + 1 for s in found.stages[:-1]]
    assert found.devices == machines.devices if use_all else found.devices <= machines.devices
    assert max(stage.memory for stage in found.stages) <= machines.memory
    assert found.noam == math.ceil(found.devices / found.stages[0].replicas)
    assert max(getattr(stage, found.bound) for stage in found.stages) == found.slowest_seconds


@settings(max_examples=300)
@given(chains, st.integers(1, 5), bandwidths, memories, st.booleans())
def test_no_partition_of_a_flat_cluster_is_faster(chain, devices, bandwidth, memory, use_all):
    check(chain, Machines(devices, bandwidth, memory=memory), use_all)


@settings(max_examples=250)
@given(layers.map(lambda few: Chain(few[:4])),
       st.sampled_from([(2, 2), (2, 3), (3, 1), (3, 2), (4, 2)]), bandwidths, bandwidths, memories,
       st.booleans())
def test_no_partition_over_servers_is_faster(chain, shape, inside, between, memory, use_all):
    servers, size = shape
    check(chain, Machines(servers * size, inside, size, between, memory), use_all)


@given(chains, st.integers(1, 5), bandwidths, memories)
def test_servers_of_one_device_are_a_flat_cluster(chain, devices, bandwidth, memory):
    outcomes = []
    for machines in (Machines(devices, bandwidth, memory=memory),
                    Machines(devices, math.inf, 1, bandwidth, memory)):
        try:
            found = partition(chain, machines)
            outcomes.append([found.slowest_seconds, found.config, found.balance,
                             [(x.compute, x.sync, x.link, x.memory) for x in found.stages]])
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


# Recomputed elsewhere from the authors' profile: the slowest stage, and data parallel in the same form.
@pytest.mark.parametrize('devices, seconds, config, parallel', [
    (4, 0.205520896, '3-1', 0.415072632), (8, 0.094626429, '7-1', 0.242125702),
    (16, 0.044159000, '15-1', 0.129710198)])
def test_it_replays_the_published_chain(devices, seconds, config, parallel):
    machines = Machines(devices, 1e9)
    found = partition(vgg16_chain(), machines)
    assert found.slowest_seconds == pytest.approx(seconds, abs=5e-10)
    assert found.config == config
    assert data_parallel(vgg16_chain(), machines).slowest_seconds == pytest.approx(parallel, abs=5.1e-10)


@given(chains, st.integers(1, 5), bandwidths, memories)
def test_more_machines_and_faster_links_never_hurt(chain, devices, bandwidth, memory):
    def seconds(devices, bandwidth):
        try:
            return partition(chain, Machines(devices, bandwidth, memory=memory), use_all=False).slowest_seconds
        except ValueError:
            return math.inf
    assert seconds(devices + 1, bandwidth) <= seconds(devices, bandwidth)
    assert seconds(devices, bandwidth * 2) <= seconds(devices, bandwidth)


@given(chains, st.integers(1, 5), bandwidths)
def test_it_is_never_slower_than_data_parallel_or_faster_than_perfect_sharing(chain, devices, bandwidth):
    machines = Machines(devices, bandwidth)
    seconds = partition(chain, machines).slowest_seconds
    total = sum(layer.seconds for layer in chain.layers)
    assert total / devices <= seconds * (1 + 1e-12)
    assert seconds <= data_parallel(chain, machines).slowest_seconds


@given(chains, st.integers(1, 5), bandwidths, st.sampled_from([0.25, 2.0, 1024.0]))
def test_units_do_not_matter(chain, devices, bandwidth, factor):
    # Powers of two: scaling is exact, and so must be the choice among ties.
    bytes_ = Chain([Layer('layer', x.seconds, x.weight_bytes * factor, x.output_bytes * factor)
                    for x in chain.layers])
    seconds = Chain([Layer('layer', x.seconds * factor, x.weight_bytes, x.output_bytes)
                     for x in chain.layers])
    plain = partition(chain, Machines(devices, bandwidth))
    in_bytes = partition(bytes_, Machines(devices, bandwidth * factor))
    in_seconds = partition(seconds, Machines(devices, bandwidth / factor))
    assert in_bytes.slowest_seconds == plain.slowest_seconds
    assert in_seconds.slowest_seconds == plain.slowest_seconds * factor
    assert plain.balance == in_bytes.balance == in_seconds.balance
    assert plain.config == in_bytes.config == in_seconds.config


@given(chains, st.integers(1, 5), st.booleans())
def test_links_for_nothing_share_the_work_perfectly(chain, devices, use_all):
    total = sum(layer.seconds for layer in chain.layers)
    assert partition(chain, Machines(devices, math.inf), use_all=use_all).slowest_seconds == pytest.approx(
        total / devices)


@given(st.builds(Layer, st.just('only'), amounts, st.just(0), amounts), st.integers(1, 5), bandwidths)
def test_one_layer_without_weights_is_replicated(layer, devices, bandwidth):
    found = partition(Chain([layer]), Machines(devices, bandwidth))
    assert found.config == str(devices) and found.slowest_seconds == layer.seconds / devices


def test_a_chain_that_takes_no_time_has_endless_throughput():
    assert partition(Chain([Layer('view', 0, 0, 0)]), Machines(1, 1.0)).throughput == math.inf


@given(st.integers(1, 12), st.integers(1, 8))
def test_each_start_and_each_split_of_the_machines_is_looked_at_once(layers, machines):
    # So N M (M+1) / 2 rows of at most N prices each: O(N^2 M^2).
    asked = []

    def prices(first, replicas, to_the_end):
        asked.append((first, replicas, to_the_end))
        return [1.0] * (layers - first)

    Cuts(layers, machines, prices, [0.0] * (layers - 1))
    assert len(asked) == len(set(asked)) == layers * machines * (machines + 1) // 2


@pytest.mark.parametrize('figures, sentence', [
    ((-1, 0, 0), 'seconds is a figure of at least 0, not -1'), ((math.nan, 0, 0), 'seconds'),
    ((0, -3, 0), 'weight_bytes'), ((0, math.inf, 0), 'weight_bytes'), ((0, 0, math.nan), 'output_bytes')])
def test_odd_layers_are_refused(figures, sentence):
    with pytest.raises(ValueError, match=sentence):
        Layer('odd', *figures)


@pytest.mark.parametrize('settings_, sentence', [
    (dict(devices=0, bandwidth=1.0), 'devices is a whole number above 0, not 0'),
    (dict(devices=2.0, bandwidth=1.0), 'devices is a whole number'),
    (dict(devices=6, bandwidth=1.0, per_server=4), '6 devices do not fill servers of 4'),
    (dict(devices=2, bandwidth=0.0), 'more than 0 bytes a second'),
    (dict(devices=2, bandwidth=math.nan), 'more than 0 bytes a second'),
    (dict(devices=2, bandwidth=1.0, per_server=1, between=-1.0), 'more than 0 bytes a second'),
    (dict(devices=2, bandwidth=1.0, memory=0.0), 'more than 0 bytes of memory')])
def test_odd_clusters_are_refused(settings_, sentence):
    with pytest.raises(ValueError, match=sentence):
        Machines(**settings_)


def test_a_chain_has_layers():
    with pytest.raises(ValueError, match='at least one layer'):
        Chain([])


figures = st.floats(0, 1e15, allow_subnormal=False)


@given(st.lists(st.builds(Layer, st.text(max_size=5), figures, figures, figures), min_size=1, max_size=4))
def test_a_written_chain_is_read_again(tmp_path_factory, some):
    path = tmp_path_factory.mktemp('chain') / 'chain.json'
    write(Chain(some), path)
    again = read(path).layers
    assert [(x.name, x.weight_bytes, x.output_bytes) for x in again] == [
        (x.name, x.weight_bytes, x.output_bytes) for x in some]
    assert [x.seconds for x in again] == pytest.approx([x.seconds for x in some], rel=1e-15)
    assert [found.name for found in path.parent.iterdir()] == ['chain.json']


@pytest.mark.parametrize('text, sentence', [
    ('[{', 'is not JSON'), ('[]', 'not a list of layers'), ('{"ms": 1}', 'not a list of layers'),
    ('[3]', 'layer 0 is not an object'),
    ('[{"ms": 1, "w_bytes": 1}]', 'layer 0: out_bytes, the bytes of outputs, is a number, not None'),
    ('[{"ms": "1", "w_bytes": 1, "out_bytes": 1}]', "ms, .*not '1'"),
    ('[{"ms": true, "w_bytes": 1, "out_bytes": 1}]', 'ms, .*not True'),
    ('[{"ms": -1, "w_bytes": 1, "out_bytes": 1}]', 'layer 0.*at least 0'),
    ('[{"ms": NaN, "w_bytes": 1, "out_bytes": 1}]', 'layer 0.*not nan'),
    (f'[{{"ms": 1{"0" * 400}, "w_bytes": 1, "out_bytes": 1}}]', 'layer 0')])
def test_a_broken_file_is_explained(tmp_path, text, sentence):
    path = tmp_path / 'broken.json'
    path.write_text(text)
    with pytest.raises(ValueError, match=f'{path.name}.*{sentence}'):
        read(path)


def test_bytes_that_are_no_text_are_no_chain(tmp_path):
    (tmp_path / 'x.json').write_bytes(b'\xff\xfe\x00')
    with pytest.raises(ValueError, match='is not JSON'):
        read(tmp_path / 'x.json')


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'chain.json'
    write(vgg16_chain(), path)
    monkeypatch.setattr(json, 'dump', lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(vgg16_chain(), path)
    assert len(read(path)) == 40 and [found.name for found in tmp_path.iterdir()] == ['chain.json']


def test_planners_need_no_torch():
    code = 'import sys, fewgpu.planner; assert "torch" not in sys.modules'
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60,
                   env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
