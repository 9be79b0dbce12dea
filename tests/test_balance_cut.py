"""The cut against all cuts there are, and against laws where there are too many."""
import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st

from fewgpu.balance import cut, cut_by_variance

COST = st.integers(0, 9) | st.sampled_from([0.1, 2.5, 1e-9, 2.0 ** 60])
COSTS = st.lists(COST, min_size=1, max_size=9) | st.lists(st.integers(0, 2), min_size=5, max_size=9)
MANY = st.lists(st.integers(0, 10 ** 12), min_size=1, max_size=120)


def sums(costs, balance):
    costs = iter(costs)
    return [sum(itertools.islice(costs, layers)) for layers in balance]


def all_cuts(layers, partitions):
    for ends in itertools.combinations(range(1, layers), partitions - 1):
        yield [stop - start for start, stop in zip((0, *ends), (*ends, layers))]


def squares(numbers):
    return sum(number ** 2 for number in numbers)


@given(COSTS, st.data())
@settings(max_examples=300)
def test_cut_is_the_best_of_all_cuts_in_the_documented_order(costs, data):
    partitions = data.draw(st.integers(1, len(costs)))
    exact = [int(cost * 2 ** 90) for cost in costs]   # whole numbers in which these floats are exact
    cuts = list(all_cuts(len(costs), partitions))
    variance = {tuple(b): (squares(sums(exact, b)), squares(b), b) for b in cuts}
    assert cut_by_variance(costs, partitions) == min(cuts, key=lambda b: variance[tuple(b)])
    assert cut(costs, partitions) == min(cuts, key=lambda b: (max(sums(exact, b)), *variance[tuple(b)]))


@given(MANY, st.data())
def test_every_stage_has_a_layer_and_every_layer_a_stage(costs, data):
    partitions = data.draw(st.integers(1, len(costs)))
    for rule in (cut, cut_by_variance):
        balance = rule(costs, partitions)
        assert len(balance) == partitions and min(balance) >= 1 and sum(balance) == len(costs)


@given(MANY, st.data())
def test_the_slowest_stage_is_between_its_bounds_and_no_slower_than_by_variance(costs, data):
    partitions = data.draw(st.integers(1, len(costs)))
    slowest = max(sums(costs, cut(costs, partitions)))
    assert slowest * partitions >= sum(costs) and slowest >= max(costs)
    assert slowest <= max(sums(costs, cut_by_variance(costs, partitions)))
    assert slowest <= sum(costs) / partitions + max(costs)   # a greedy cut reaches this


@given(MANY)
@settings(max_examples=30)
def test_more_partitions_never_slow_the_slowest_stage(costs):
    slowest = [max(sums(costs, cut(costs, n))) for n in range(1, min(len(costs), 12) + 1)]
    assert slowest == sorted(slowest, reverse=True)


def test_a_thousand_layers_in_64_stages_are_cut_exactly():
    rng = random.Random(0)
    costs = [int(1000 * rng.paretovariate(1.2)) for _ in range(1000)]
    slowest = max(sums(costs, cut(costs, 64)))

    def stages_needed(limit):   # filled greedily
        stages, room = 1, limit
        for cost in costs:
            if cost > room:
                stages, room = stages + 1, limit
            room -= cost
        return stages

    assert stages_needed(slowest) <= 64
    assert slowest == max(costs) or stages_needed(slowest - 1) > 64
    balance = cut_by_variance(costs, 64)
    for stage, layers in enumerate(balance[:-1]):
        for moved in (-1, 1):
            other = [*balance[:stage], layers + moved, balance[stage + 1] - moved, *balance[stage + 2:]]
            assert min(other) < 1 or squares(sums(costs, other)) >= squares(sums(costs, balance))


def test_the_two_rules_differ_as_the_docstring_says():
    assert sums([1, 5, 2, 3], cut([1, 5, 2, 3], 3)) == [1, 5, 5]
    assert sums([1, 5, 2, 3], cut_by_variance([1, 5, 2, 3], 3)) == [6, 2, 3]


def test_layers_that_cost_nothing_are_spread_evenly():
    assert cut([0.0] * 6, 3) == cut_by_variance([0.0] * 6, 3) == [2, 2, 2]


@pytest.mark.parametrize('rule', [cut, cut_by_variance])
@pytest.mark.parametrize('costs, partitions, message', [
    ([1, 2], 3, 'ask for at most 2'),
    ([], 1, 'too few'),
    ([1, 2], 0, 'at least one stage'),
    ([1, -2], 1, 'layer 1 costs -2'),
    ([1, float('nan')], 1, 'layer 1 costs nan'),
    ([float('inf'), 1], 1, 'layer 0 costs inf'),
])
def test_costs_that_cannot_be_cut_are_refused(rule, costs, partitions, message):
    with pytest.raises(ValueError, match=message):
        rule(costs, partitions)


@given(MANY, st.data())
@settings(max_examples=50)
def test_the_slowest_stage_is_never_slower_than_torchgpipes(costs, data):
    peer = pytest.importorskip('torchgpipe.balance.blockpartition')
    partitions = data.draw(st.integers(1, min(len(costs), 8)))
    theirs = max(map(sum, peer.solve(costs, partitions)))
    assert max(sums(costs, cut(costs, partitions))) <= theirs
