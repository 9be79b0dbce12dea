"""The depth-and-width planner equals its formulas, evaluated one by one, and keeps the lectures' laws."""

import math

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fewgpu.planner import Block, Machines, settings

figures = st.integers(0, 30)


@st.composite
def blocks(draw):
    per_row, fixed = draw(st.integers(1, 20)), draw(st.integers(0, 20))
    return Block(lambda b: fixed + per_row * b, *(draw(figures) for _ in range(4)))


models = st.lists(blocks(), min_size=1, max_size=5)
equal = st.builds(lambda block, count: [block] * count, blocks(), st.integers(1, 6))
clusters = st.builds(lambda shape, fast, slow, memory: Machines(math.prod(shape), fast, shape[1], slow,
                                                               memory),
                     st.sampled_from([(1, 4), (2, 2), (3, 2), (2, 1)]), st.sampled_from([2.0, 8.0, math.inf]),
                     st.sampled_from([0.5, 2.0]), st.one_of(st.just(math.inf), st.integers(20, 600)))
batches = st.sampled_from([1, 4, 6, 8, 12, 24])


def balanced(model, depth, b):
    """The least slowest stage, by trial."""
    if depth == 1:
        return sum(block.seconds(b) for block in model)
    return min(max(sum(block.seconds(b) for block in model[:end]), balanced(model[end:], depth - 1, b))
               for end in range(1, len(model) - depth + 2))


def formulas(model, machines, batch, one):
    """(seconds, memory) of a setting, as the paper has them."""
    w, d, b = one.width, one.depth, one.micro_batch
    bandwidth = {size: machines.bandwidth if machines.servers == 1 or size < machines.in_a_server else
                 machines.outside for size in (w, d)}
    rest, times, memory = list(model), [], []
    for number, count in enumerate(one.balance):
        stage, rest = rest[:count], rest[count:]
        inputs = b * stage[0].input_bytes
        moved = (inputs if number else 0) + (b * rest[0].input_bytes if rest else 0)
        weights = sum(block.weight_bytes for block in stage)
        compute = sum(block.seconds(b) for block in stage) * (4 / 3 if one.recompute else 1)
        reduce = 2 * (w - 1) / w * weights / bandwidth[w]
        times.append(max(compute + 2 * moved / bandwidth[d], reduce / (batch / (w * b))))
        kept = b * sum(block.activation_bytes for block in stage)
        state = sum(block.state_bytes for block in stage)
        if one.pipelined:
            memory.append(2 * weights + state + (kept if one.recompute else d * kept) + d * inputs)
        else:
            memory.append(weights + state + kept + inputs)
    return (max if one.pipelined else sum)(times), max(memory)


@examples(max_examples=60)
@given(models, clusters, batches)
def test_it_lists_every_setting_once_at_the_price_of_the_formulas(model, machines, batch):
    found = settings(model, machines, batch, micro_batches=(4, 1, 2))
    expected = {(w, d, b, recompute, pipelined)
                for d in range(1, min(len(model), machines.devices) + 1) for w in range(1, machines.devices + 1)
                for b in (1, 2, 4) if w * d <= machines.devices and batch % (w * b) == 0
                for recompute in (False, True) for pipelined in (False, True) if d > 1 or not pipelined}
    keys = [(one.width, one.depth, one.micro_batch, one.recompute, one.pipelined) for one in found]
    assert len(keys) == len(expected) and set(keys) == expected
    for one in found:
        seconds, memory = formulas(model, machines, batch, one)
        assert (one.seconds, one.memory) == pytest.approx((seconds, memory), rel=1e-12)
        assert one.throughput == pytest.approx(one.width * one.micro_batch / seconds)
        assert one.micro_batches * one.width * one.micro_batch == batch and sum(one.balance) == len(model)
        assert one.g == pytest.approx(batch / (one.width * one.depth * one.micro_batch))
        idle = one.pipelined and one.micro_batches < one.depth
        assert bool(one.dropped) == (memory > machines.memory or idle)
        slowest = balanced(model, one.depth, one.micro_batch)
        stops = [sum(one.balance[:i]) for i in range(one.depth + 1)]
        assert slowest == max(sum(block.seconds(one.micro_batch) for block in model[a:z])
                              for a, z in zip(stops, stops[1:]))


def best(model, machines, batch, **more):
    first = next(iter(settings(model, machines, batch, **more)), None)
    return 0.0 if first is None or first.dropped else first.throughput


@given(models, clusters, batches)
def test_the_first_is_the_fastest_that_fits(model, machines, batch):
    found = settings(model, machines, batch)
    possible = [one for one in found if not one.dropped]
    assert found[:len(possible)] == possible
    assert [one.throughput for one in possible] == sorted((one.throughput for one in possible), reverse=True)
    assert all(one.memory <= machines.memory for one in possible)
    assert all('needs' in one.dropped or 'do not fill' in one.dropped for one in found[len(possible):])


@given(models, clusters, batches, st.sampled_from([1.1, 2, 10]))
def test_more_memory_never_slows_it_down(model, machines, batch, factor):
    larger = Machines(machines.devices, machines.bandwidth, machines.per_server, machines.between,
                     machines.memory * factor)
    assert best(model, machines, batch) <= best(model, larger, batch)


@given(models, clusters, batches, st.integers(2, 5))
def test_a_multiple_of_the_batch_is_never_slower(model, machines, batch, factor):
    # A multiple: every division w b m of the batch is one of it, too.
    assert best(model, machines, batch) <= best(model, machines, factor * batch)


@given(models, clusters, batches)
def test_recompute_wins_only_where_the_same_without_it_does_not_fit(model, machines, batch):
    found = settings(model, machines, batch)
    if found[0].dropped or not found[0].recompute:
        return
    first = found[0]
    twin, = [one for one in found if not one.recompute
             and (one.width, one.depth, one.micro_batch, one.pipelined)
             == (first.width, first.depth, first.micro_batch, first.pipelined)]
    assert twin.dropped.startswith('needs')


@given(equal, clusters, batches)
def test_equal_blocks_are_dealt_out_evenly(model, machines, batch):
    for one in settings(model, machines, batch):
        assert max(one.balance) == -(-len(model) // one.depth)


def test_seconds_may_come_from_a_table():
    table = {1: 2.0, 2: 3.0}
    found = settings([Block(table.__getitem__, 0, 0, 0)], Machines(1, 1.0), 2, micro_batches=table)
    assert [one.throughput for one in found if not one.recompute] == [2 / 3, 1 / 2]


@pytest.mark.parametrize('model, batch, micro_batches, sentence', [
    ([], 1, (1,), '0 blocks'), ([Block(lambda b: b, 0, 0, 0)], 0, (1,), 'batch 0'),
    ([Block(lambda b: b, 0, 0, 0)], 1, (), 'micro-batches'),
    ([Block(lambda b: b, 0, 0, 0)], 1, (0, 1), 'micro-b'),
    ([Block(lambda b: math.nan, 0, 0, 0)], 1, (1,), 'not nan'),
    ([Block(lambda b: -1.0, 0, 0, 0)], 1, (1,), 'at least 0 seconds for a micro-batch of 1, not -1')])
def test_odd_plans_are_refused(model, batch, micro_batches, sentence):
    with pytest.raises(ValueError, match=sentence):
        settings(model, Machines(2, 1.0), batch, micro_batches=micro_batches)


@pytest.mark.parametrize('figures_', [(-1, 0, 0), (0, math.nan, 0), (0, 0, math.inf), (0, 0, 0, -1)])
def test_odd_blocks_are_refused(figures_):
    with pytest.raises(ValueError, match='at least 0'):
        Block(lambda b: b, *figures_)
