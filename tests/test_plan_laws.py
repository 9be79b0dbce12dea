"""What the planner predicts: closed forms of the papers, the event simulator, and laws that any prediction keeps."""

from dataclasses import replace
from itertools import product
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.planner import search, way_pipeline, way_zero
from fewgpu.planner.cluster import Cluster, amount, parse_rate, parse_size, preset
from fewgpu.planner.growth import communication_share
from fewgpu.planner.known import known, transformer
from fewgpu.planner.model import Sizes, Model
from fewgpu.planner.search import WAYS, best, fastest_first
from fewgpu.planner.way_memory import PRECISIONS, activations, states
from fewgpu.planner.ways import Knobs, Task
from fewgpu.schedule import gpipe, one_f_one_b, with_recompute
from fewgpu.schedule.two_bw import two_bw
from fewgpu.simulate import Costs, simulate
from fewgpu.zero import bytes_per_rank

MIXED = PRECISIONS['mixed']
MODELS = {name: known(name) for name in ('resnet50', 'vgg16', 'bert-large', 'gpt-2.2B')}
#: FLOPs are seconds, numbers are bytes' halves, and nothing else costs anything.
BARE = Cluster(flops=1.0, efficiency=1.0, overhead=0.0, latency=0.0, per_server=1, memory=1e30)


def equal_layers(count, work=1.0, backward=2.0, **sizes):
    sizes = {'parameters': 10.0, 'stash': 5.0, 'output': 3.0} | sizes
    return Model('equal', tuple(Sizes(str(k), flops=work, backward=backward, **sizes) for k in range(count)), 3.0)


tasks = st.builds(
    lambda name, devices, between, per_server, memory, batch, precision: Task(
        MODELS[name], Cluster(devices=devices, between=between, per_server=per_server, memory=memory), batch,
        PRECISIONS[precision]),
    st.sampled_from(sorted(MODELS)), st.integers(0, 8).map(lambda k: 2**k), st.sampled_from((1e8, 1e9, 1e10, 1e11)),
    st.sampled_from((1, 2, 8)), st.sampled_from((2e9, 16e9, 80e9)), st.sampled_from((1, 7, 64, 512)),
    st.sampled_from(sorted(PRECISIONS)))


# Memory


@pytest.mark.parametrize('shards, row', [
    (1, (120, 120, 120)), (4, (52.5, 41.3, 30)), (16, (35.6, 21.6, 7.5)), (64, (31.4, 16.6, 1.88)),
    (256, (30.4, 15.4, 0.47)), (1024, (30.1, 15.1, 0.12))])
def test_zero_keeps_what_table_1_of_its_paper_says(shards, row):
    for stage, gigabytes in enumerate(row, 1):
        kept = sum(states(7.5e9, MIXED, shards=shards, zero=stage).values())
        assert abs(kept / 1e9 - gigabytes) < 0.06   # its digits


@given(st.floats(1e6, 1e12), st.integers(1, 1024))
def test_zero_keeps_its_closed_forms(parameters, shards):
    kept = [sum(states(parameters, MIXED, shards=shards, zero=stage).values()) for stage in range(4)]
    K = 12
    assert kept == pytest.approx([(4 + K) * parameters, (4 + K / shards) * parameters,
                                  (2 + (2 + K) / shards) * parameters, (4 + K) * parameters / shards])


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4),
       st.sampled_from(('1f1b', '2bw', 'gpipe')))
def test_pipelines_keep_what_2bw_s_paper_says(depth, each, rows, times, schedule):
    """2|W|/d + |A_total|/d + d |A_input| with recompute, d |A_total|/d without, where inputs are parts of the stash;
    GPipe: one version, and m |A_input|."""
    model, m = equal_layers(depth * each), depth * times
    task = Task(model, BARE, rows * m)
    W, A, A_input = 16 * model.parameters, 2 * rows * sum(layer.stash for layer in model.layers), 2 * rows * 3.0
    versions = 2 * model.parameters if schedule == '2bw' and depth > 1 else 0.0
    kept = m if schedule == 'gpipe' else depth
    for recompute, wanted in (('stages', A / depth + kept * A_input), ('never', kept * A / depth)):
        one = way_pipeline.predict('', task, Knobs(stages=depth, rows=rows, recompute=recompute, schedule=schedule))
        assert one.memory_bytes == pytest.approx((W + versions) / depth + wanted)


@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from(('never', 'stages')),
       st.sampled_from((one_f_one_b, gpipe)))
def test_activations_are_those_that_live_in_the_simulator(stages, chunks, recompute, schedule):
    model = equal_layers(stages)
    plan = schedule(stages, chunks)
    plan = plan if recompute == 'never' else with_recompute(plan, 'always')
    timeline = simulate(plan, Costs(stash=5, input=3))
    knobs = Knobs(stages=stages, schedule='gpipe' if schedule is gpipe else '1f1b')
    for index, stage in enumerate(model.stages(stages)):
        predicted = activations(stage, 1, way_pipeline.in_flight(knobs, chunks, index), recompute)
        # where a stash comes back, its input is counted beside it
        assert predicted == timeline.peak(index) + (3 if recompute == 'stages' else 0)


# Time


costs = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3).map(lambda k: k / 64),
                  st.sampled_from(('never', 'stages')))


def in_time(stages, chunks, seconds, recompute, schedule, batch=None):
    """A step of equal stages, whose messages take so many seconds."""
    cluster = replace(BARE, latency=seconds, between=1e30, devices=stages)
    knobs = Knobs(stages=stages, recompute=recompute, schedule=schedule)
    return way_pipeline.predict('', Task(equal_layers(stages), cluster, chunks), knobs).step


@given(costs, st.integers(1, 12))
def test_1f1b_takes_as_long_as_in_the_simulator(cost, chunks):
    stages, _, seconds, recompute = cost
    plan = one_f_one_b(stages, chunks)
    plan = plan if recompute == 'never' else with_recompute(plan, 'always')
    exact = simulate(plan, Costs(latency=seconds)).makespan
    mine = in_time(stages, chunks, seconds, recompute, '1f1b')
    if recompute == 'never':
        assert mine == pytest.approx(exact)
    else:   # a recompute that is done while a gradient is on its way is not waited for
        assert exact <= mine * (1 + 1e-9) and mine <= exact + 2 * (stages + chunks) * seconds + stages


@given(st.integers(2, 6), st.integers(1, 12), st.integers(0, 12).map(lambda k: k / 4))
def test_1f1b_takes_as_long_as_in_the_simulator_where_messages_queue(stages, chunks, seconds):
    """Messages of up to f + b seconds, which leave one after the other."""
    cluster = replace(BARE, between=6.0 / seconds if seconds else 1e30, devices=stages)   # 3 numbers of 2 bytes
    mine = way_pipeline.predict('', Task(equal_layers(stages), cluster, chunks), Knobs(stages=stages)).step
    exact = simulate(one_f_one_b(stages, chunks), Costs(bandwidth=1.0, message=seconds)).makespan
    assert mine == pytest.approx(exact)


@given(st.integers(2, 6), st.integers(1, 12), st.data())
def test_1f1b_is_not_predicted_faster_than_in_the_simulator(stages, chunks, data):
    """Whatever stages and messages cost (up to what a stage computes)."""
    numbers = st.lists(st.integers(4, 12), min_size=stages, max_size=stages)
    work, sizes = data.draw(numbers), data.draw(numbers)
    model = Model('uneven', tuple(Sizes(str(k), 0.0, flops, 0.0, size)
                                  for k, (flops, size) in enumerate(zip(work, sizes))), 1.0)
    cluster = replace(BARE, between=2.0, devices=stages)   # a number, of 2 bytes, takes a second
    mine = way_pipeline.predict('', Task(model, cluster, chunks), Knobs(stages=stages)).step
    exact = simulate(one_f_one_b(stages, chunks), Costs(F=work, B=[2 * one for one in work], bandwidth=1.0,
                                                        message=sizes[:-1])).makespan
    assert exact <= mine * (1 + 1e-9)


@pytest.mark.parametrize('m, F, B, W, seconds, published', [
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431), (32, 18.513, 18.086, 9.331, 0.626, 0.1985),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240)])
def test_1f1b_idles_as_published_with_messages(m, F, B, W, seconds, published):
    """Bubble rates of 1F1B, 8 stages, 1.5 billion parameters (zero bubble, arXiv 2401.10241, tables 5 and 9)."""
    model = equal_layers(8, work=F, backward=B + W)
    cluster = replace(BARE, latency=seconds, between=1e30, devices=8)
    one = way_pipeline.predict('', Task(model, cluster, m), Knobs(stages=8))
    assert 1 - one.parts['compute'] / one.step == pytest.approx(published, abs=6e-5)


@given(costs, st.integers(1, 12))
def test_gpipe_takes_as_long_as_in_the_simulator(cost, chunks):
    stages, _, seconds, recompute = cost
    plan = gpipe(stages, chunks)
    plan = plan if recompute == 'never' else with_recompute(plan, 'always')
    exact = simulate(plan, Costs(latency=seconds)).makespan
    assert in_time(stages, chunks, seconds, recompute, 'gpipe') == pytest.approx(exact)


@given(costs, st.integers(2, 3))
def test_2bw_takes_as_long_as_each_further_step_in_the_simulator(cost, steps):
    stages, rounds, seconds, _ = cost
    m = stages * rounds
    one, more = (simulate(two_bw(stages, m * k, update_every=m), Costs(latency=seconds)).makespan
                 for k in (steps, steps + 1))
    assert in_time(stages, m, seconds, 'never', '2bw') == pytest.approx(more - one)


@given(st.integers(1, 6), st.integers(1, 9))
def test_naive_model_parallelism_is_as_slow_as_one_device(stages, rows):
    task = Task(equal_layers(stages), replace(BARE, devices=stages, between=1e30), 9)
    one = way_pipeline.predict('', task, Knobs(rows=rows))
    spread = way_pipeline.predict('', task, Knobs(stages=stages, rows=rows, schedule='one at a time'))
    assert spread.step == pytest.approx(one.step)
    assert spread.busy == pytest.approx(one.busy)


@given(st.integers(1, 4096), st.integers(1, 64), st.floats(1e3, 1e12), st.floats(0, 1e-3))
def test_an_all_reduce_takes_the_ring_s_closed_form(ranks, stride, size, latency):
    """2(N-1)/N S/B + 2(N-1) latency where there is one kind of link."""
    apart = Cluster(per_server=1, between=1e9, latency=latency)
    together = Cluster(per_server=ranks * stride, inside=1e9, latency=latency)
    wanted = 2 * (ranks - 1) / ranks * size / 1e9 + 2 * (ranks - 1) * latency
    assert apart.all_reduce(size, ranks, stride) == pytest.approx(wanted)
    assert together.all_reduce(size, ranks, stride) == pytest.approx(wanted)


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4, 8)), st.integers(2, 64), st.floats(1e3, 1e12))
def test_rings_share_a_server_s_network(per_server, stride, servers, size):
    """Whatever group it is in, a device sends its part over its share: (k-1)/k of what its server has in all."""
    inside = per_server // min(stride, per_server)
    cluster = Cluster(per_server=per_server, inside=1e30, between=1e9, latency=0.0)
    ranks = inside * servers
    leaving = 2 * (servers - 1) / servers * size * per_server / inside   # of all groups together
    assert cluster.all_reduce(size, ranks, stride) == pytest.approx(leaving / 1e9)


@given(st.sampled_from((2, 4, 8)), st.integers(1, 8), st.integers(1, 6), st.booleans())
def test_tensor_ranks_exchange_8bsh_a_layer(t, b, layers, recompute):
    """8 b s h (t-1)/t numbers a layer and micro-batch, and half as many again for a recompute."""
    h, s, bandwidth = 64, 32, 1e9
    model = transformer('gpt', layers, h, 8, s, 100, batch=1)
    cluster = Cluster(per_server=8, inside=bandwidth, latency=0.0)
    one = way_pipeline.predict('', Task(model, cluster, b), Knobs(
        tensor=t, rows=b, recompute='layers' if recompute else 'never'))
    wanted = layers * 8 * b * s * h * (t - 1) / t * 2 / bandwidth
    assert one.parts['tensor link'] == pytest.approx(wanted * (1.5 if recompute else 1.0))


@given(st.integers(2, 64), st.sampled_from((1, 2, 3)), st.integers(1, 4))
def test_zero_sends_2_or_3_times_the_parameters(ranks, stage, chunks):
    """Where nothing hides it: 2 P, (m+1) P and 3 m P numbers; data parallelism: 2 P."""
    model = equal_layers(3, work=0.0, backward=0.0, parameters=1000.0)
    task = Task(model, replace(BARE, devices=ranks, between=1e9), ranks * chunks)
    one = way_zero.predict('', task, Knobs(replicas=ranks, zero=stage))
    per_p = (ranks - 1) / ranks * 2 * model.parameters / 1e9
    assert one.parts['data link'] == pytest.approx({1: 2, 2: chunks + 1, 3: 3 * chunks}[stage] * per_p)
    plain = way_pipeline.predict('', task, Knobs(replicas=ranks))
    assert plain.parts['data link'] == pytest.approx(2 * per_p)


@given(tasks, st.integers(0, 2).map(lambda k: 2**k), st.sampled_from(('never', 'layers')))
def test_offload_is_as_slow_as_its_slowest_link(task, rows, recompute):
    replicas = min(task.cluster.devices, task.batch)
    knobs = Knobs(replicas=replicas, rows=rows, recompute=recompute, zero=3, offload=True)
    one, P = way_zero.predict('', task, knobs), task.model.parameters
    kept = way_zero.predict('', task, replace(knobs, offload=False))
    chunks, w, g = knobs.chunks(task.batch), task.precision.weight, task.precision.gradient
    computes = kept.parts['compute'] + kept.parts['recompute']
    host = chunks * (2 * w + g) * P / replicas / task.cluster.host_bandwidth
    network = chunks * (2 * task.cluster.reduce_scatter(w * P, replicas) + task.cluster.reduce_scatter(g * P, replicas))
    assert one.step - one.parts['update by hosts'] == pytest.approx(max(computes, host, network))


# All ways


@settings(max_examples=25, deadline=None)
@given(tasks)
def test_the_winner_fits_if_any_way_does_and_is_the_fastest(task):
    ranked = fastest_first(task)
    fitting = [one for one in ranked if one.fits]
    assert ranked[:len(fitting)] == fitting
    assert all(one.samples_per_second <= fitting[0].samples_per_second * (1 + 1e-8) for one in fitting)
    for one in ranked:
        assert one.fits == (one.memory_bytes <= task.cluster.memory and not one.beyond)
        assert min(one.parts.values()) >= -1e-9 * one.step and one.why
        assert one.knobs.devices <= task.cluster.devices and 0 < one.busy < 1 + 1e-9
        assert one.knobs.chunks(task.batch) * one.knobs.rows * one.knobs.replicas >= task.batch


@settings(max_examples=25, deadline=None)
@given(tasks, st.sampled_from(('between', 'inside', 'host_bandwidth', 'disk_bandwidth', 'memory', 'flops', 'flops32')))
def test_doubling_a_bandwidth_never_slows_a_way_down(task, what):
    more = replace(task, cluster=replace(task.cluster, **{what: 2 * getattr(task.cluster, what)}))
    for way in search.ways_for(task):
        before, after = best(way, task), best(way, more)
        if before.fits:
            assert after.fits and after.step <= before.step * (1 + 1e-9), way


@settings(max_examples=15, deadline=None)
@given(tasks)
def test_twice_as_many_devices_are_never_slower(task):
    more = replace(task, cluster=replace(task.cluster, devices=2 * task.cluster.devices))
    before, after = fastest_first(task)[0], fastest_first(more)[0]
    if before.fits:
        assert after.fits and after.step <= before.step * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(tasks, st.integers(0, 4).map(lambda k: 2**k), st.sampled_from(('never', 'layers')))
def test_on_one_device_all_ways_are_plain_training(task, rows, recompute):
    """Offload, which updates on the host, and GPipe's memory (it holds all micro-batches) aside."""
    task = replace(task, cluster=replace(task.cluster, devices=1))
    plain = way_pipeline.predict('', task, Knobs(rows=rows, recompute=recompute))
    for way, (_, predict) in WAYS.items():
        found = best(way, task).knobs
        knobs = replace(found, rows=rows, recompute=recompute)
        one = predict(way, task, knobs)
        if way != 'offload':
            assert knobs.devices == 1 and one.step == pytest.approx(plain.step), way
            assert one.memory_bytes == pytest.approx(plain.memory_bytes) or way == 'GPipe', way


@pytest.mark.parametrize('devices', [1, 100, 16384, 10**6])
def test_the_search_grows_with_the_logarithm_of_the_devices_at_most(devices):
    task = Task(known('gpt-175B'), preset('a100-80', devices=devices), 1536)
    settings_tried = sum(1 for knobs, _ in WAYS.values() for _ in knobs(task))
    assert settings_tried <= 200 * (2 + log2(devices))**2


def test_gpt_3_takes_about_as_many_days_as_megatron_estimates():
    """34 days for 300 billion tokens on 1024 A100s (arXiv 2104.04473, section 5.1), where all layers are recomputed."""
    ranked = fastest_first(Task(known('gpt-175B'), preset('a100-80', devices=1024), 1536), stale=False)
    days = 300e9 / 2048 / ranked[0].samples_per_second / 86400
    assert ranked[0].name == 'tensor x 1F1B x data' and 34 * 0.75 < days < 34 * 1.25


def test_what_does_not_fit_says_by_how_much():
    task = Task(known('gpt-2.2B'), preset('v100-16', devices=8), 512)
    one = next(one for one in fastest_first(task) if one.name == 'data parallel')
    assert not one.fits
    assert amount(one.memory_bytes - 16e9) in one.why and 'optimizer states' in one.why


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.sampled_from((1, 2, 4, 8)), st.integers(1, 24), st.sampled_from((1, 5, 6, 12)),
       st.sampled_from((3e9, 1e10, 1e11)), st.sampled_from((1e8, 1e10)))
def test_on_few_devices_no_grid_is_faster_than_the_winner(devices, per_server, batch, heads, memory, between):
    """Brute force: all stages, replicas, tensor ranks that divide heads and servers; micro-batches of 2^k and all."""
    model = transformer('gpt', 5, 60 * 16, heads, 128, 5000, batch=batch)
    task = Task(model, Cluster(devices=devices, per_server=per_server, memory=memory, between=between), batch)
    here, step = min(devices, per_server), float('inf')
    for tensor, stages, replicas in product(range(1, here + 1), range(1, len(model.layers) + 1), range(1, batch + 1)):
        if tensor * stages * replicas <= devices and not heads % tensor and not here % tensor:
            most = -(-batch // replicas)
            for rows, again in product({*(2**k for k in range(6) if 2**k < most), most}, ('never', 'layers', 'stages')):
                if stages > 1 or again != 'stages':
                    one = way_pipeline.predict('', task, Knobs(replicas, stages, tensor, rows, again))
                    step = min(step, one.step) if one.fits else step
    first = next((one for one in fastest_first(task, stale=False)), None)
    assert step == float('inf') or (first.fits and first.step <= step * (1 + 1e-9))


@given(st.integers(1, 3), st.sampled_from(sorted(MODELS)))
def test_no_way_is_another_one_under_a_second_name(devices, name):
    task = Task(MODELS[name], Cluster(devices=devices, memory=1e12), 64)
    ways = search.ways_for(task)
    assert not any(' x ' in way for way in ways)   # two replicas of two stages take four devices
    assert devices > 1 or ways == ['plain, one device', 'offload']


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.integers(2, 16), st.sampled_from((1, 2, 5, 8)), st.sampled_from((1, 3, 64)),
       st.sampled_from((1e7, 1e10)))
def test_on_several_devices_every_way_differs_from_every_other(name, devices, per_server, batch, between):
    ranked = fastest_first(Task(MODELS[name], Cluster(devices=devices, per_server=per_server, between=between,
                                                      memory=1e12), batch))
    for one in ranked:
        sizes = sorted((one.knobs.tensor, one.knobs.stages, one.knobs.replicas))
        assert ' x ' not in one.name or sizes[1] >= 2, one
        assert one.name in ('plain, one device', 'offload') or sizes[2] >= 2, one
    alike = [(*sorted(vars(one.knobs).items()),) for one in ranked]
    assert len(set(alike)) == len(alike)


@settings(max_examples=25, deadline=None)
@given(tasks)
def test_what_recompute_is_for_is_said_exactly_where_it_saves_the_fit(task):
    for one in fastest_first(task):
        _, predict = WAYS[one.name]
        fits = predict(one.name, task, replace(one.knobs, recompute='never')).fits
        assert ('without recompute' in one.why) == (one.fits and not fits)


@given(st.floats(1, 1e12), st.integers(1, 512), st.integers(0, 3), st.sampled_from(sorted(PRECISIONS)))
def test_states_are_those_that_the_kit_s_zero_counts(parameters, ranks, stage, name):
    precision = PRECISIONS[name]
    assert sum(states(parameters, precision, shards=ranks, zero=stage).values()) == pytest.approx(bytes_per_rank(
        parameters, ranks, stage, K=precision.optimizer, parameter_bytes=precision.weight,
        gradient_bytes=precision.gradient))


# The growth of communication


@given(st.sampled_from(('alexnet', 'vgg16', 'resnet50')), st.sampled_from((1, 2, 8)), st.integers(1, 128),
       st.booleans())
def test_the_share_of_communication_grows_with_machines(name, per_server, rows, overlap):
    shares = communication_share(known(name), Cluster(per_server=per_server), range(1, 40), rows=rows, overlap=overlap)
    assert all(a <= b for a, b in zip(shares, shares[1:])) and 0 <= shares[0] <= shares[-1] < 1
    assert per_server > 1 or shares[0] == 0


@given(st.integers(1, 128), st.floats(1e8, 1e11))
def test_the_share_tends_to_its_closed_form(rows, between):
    """A / (C + A), A = 2 S/B for very many machines of one device and no latency."""
    cluster, model = Cluster(per_server=1, latency=0.0, overhead=0.0, between=between), known('resnet50')
    share, = communication_share(model, cluster, [10**9], rows=rows)
    A = 2 * 4 * model.parameters / between
    C = 3 * model.flops * rows / (cluster.flops32 * cluster.efficiency)
    assert share == pytest.approx(A / (C + A))


@given(st.integers(2, 64), st.integers(1, 64))
def test_alexnet_communicates_most_and_resnet50_least(machines, rows):
    """Parameters a FLOP: AlexNet 43, VGG16 4.5, ResNet-50 3.1 a thousand."""
    cluster = Cluster(per_server=1, latency=0.0, overhead=0.0)
    shares = [communication_share(known(name), cluster, [machines], rows=rows)[0]
              for name in ('alexnet', 'vgg16', 'resnet50')]
    assert shares == sorted(shares, reverse=True)


# Clusters and sizes


@pytest.mark.parametrize('text, size', [('16GB', 16e9), ('80 GiB', 80 * 2**30), ('1.5TB', 1.5e12), ('600MB', 6e8)])
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize('text, rate', [('10GB/s', 1e10), ('100Gbit/s', 1.25e10), ('25 Gbits/s', 3.125e9),
                                        ('1GiB/s', 2**30)])
def test_rates_are_read(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize('text', ['10Gb/s', '10Gbps', '10GBps', '10G', '10gb/s', '10 G/s'])
def test_bits_that_may_be_bytes_are_refused(text):
    with pytest.raises(ValueError, match='bits or bytes'):
        parse_rate(text)


@pytest.mark.parametrize('text', ['', '0GB/s', 'fast', '-1GB/s', '10'])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match='no bandwidth'):
        parse_rate(text)


@pytest.mark.parametrize('text', ['16', '16Gb', '0GB', '-1GB', '16Gbit', 'x'])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match='no amount of memory'):
        parse_size(text)


@given(st.floats(1, 1e15))
def test_amounts_can_be_read_again(size):
    assert parse_size(amount(size)) == pytest.approx(size, rel=0.006, abs=0.51)


@pytest.mark.parametrize('changes, said', [({'devices': 0}, 'devices'), ({'memory': -1}, 'memory'),
                                           ({'efficiency': 1.5}, 'efficiency'), ({'latency': -1}, 'latency'),
                                           ({'between': float('nan')}, 'between')])
def test_clusters_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Cluster(**changes)


def test_servers_are_counted():
    assert [Cluster(devices=n, per_server=8).servers for n in (1, 8, 9)] == [1, 1, 2]
