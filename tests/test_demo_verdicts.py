"""Verdicts of demonstrations come from figures: with one figure doctored, each is no."""

import ast
import inspect
from importlib import import_module
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.planner import Setting
from fewgpu.planner.known import known
from fewgpu.workshop import demos
from fewgpu.workshop.demos import DEMOS
from fewgpu.workshop.demos import (depth_width, gems, hybrid, hydra, partitioner, pipedream, pipemare, plan, tensor,
                                   two_bw, unet, zero, zero_infinity)
from fewgpu.workshop.measured import depth_width as planned
from fewgpu.workshop.noise import NOISE, Quiet, both, faster

IDLE = {('with a flush', 'here'): 0.3, ('without', 'here'): 0.1}
ERRORS, KEPT = {'stashing': 1e-14, 'no stashing': 0.1}, {'stashing': [3, 2, 1], 'no stashing': [1, 1, 1]}
POINTS = {'GPipe': (1.0, 9.0), 'flush (1F1B)': (1.0, 5.0), '2BW': (1.5, 6.0), 'PipeDream': (2.0, 10.0)}
SHIPPED = partitioner.SHIPPED
MEANS = {'late, uncorrected': nan, 'synchronous': 0.3, 'T1, T2 and T3': 0.4}
RULE = [0] * 8 + [1] * 4 + [2] * 4

# A criterion; figures with which it says yes; and, by place, what makes it say no in place of one of them.
VERDICTS = [
    (pipedream.is_valid_at_a_price, (ERRORS, KEPT, [3, 2, 1]), {
        0: [ERRORS | {'stashing': 1e-3}, ERRORS | {'no stashing': 1e-12}],
        1: [KEPT | {'stashing': [1, 1, 1]}, KEPT | {'no stashing': [2, 1, 1]}], 2: [[4, 3, 2], [1, 1, 1]]}),
    (pipedream.is_filled_at_a_price, (IDLE, 0.8, 0.6), {
        0: [IDLE | {('without', 'here'): 0.25}, IDLE | {('without', 'there'): 0.2, ('with a flush', 'there'): 0.2}],
        1: [0.5], 2: [0.9]}),
    (partitioner.finds_what_they_ship, (SHIPPED,), {0: [SHIPPED | {8: '8'}, {}]}),
    (partitioner.is_faster_by_the_model, ([1.2, 3.0, 6.8],), {0: [[1.1, 3.0], [3.0, 7.0]]}),
    (partitioner.is_shorter_by_faster_gpus, ([1.98, 2.0, 1.72],), {0: [[1.98, 2.0, 1.0], [1.4]]}),
    (two_bw.is_one_update_late, (RULE, [2, 2, 2, 2]), {
        0: [[0] * 16, RULE[:8] + [2] * 8], 1: [[2, 2, 2, 1], [4, 3, 2, 1]]}),
    (two_bw.learns_alike, ({'2BW': 0.9, 'synchronous': 0.91}, {'2BW': 0.35, 'synchronous': 0.33}), {
        0: [{'2BW': 0.8, 'synchronous': 0.91}],
        1: [{'2BW': 0.5, 'synchronous': 0.33}, {'2BW': 0.2, 'synchronous': 0.33}]}),
    (two_bw.is_fast_or_frugal, ([POINTS], POINTS), {
        0: [[POINTS, POINTS | {'PipeDream': (2.0, 1.0)}]],
        1: [POINTS | {'2BW': (0.9, 6.0)}, POINTS | {'2BW': (1.5, 4.0)}, POINTS | {'2BW': (1.5, 11.0)}]}),
    (two_bw.none_is_both, (POINTS,), {0: [POINTS | {'flush (1F1B)': (2.2, 5.0)}, POINTS | {'PipeDream': (2.0, 1.0)}]}),
    (depth_width.is_that_much_faster, (3.2, 20.0), {0: [1.8], 1: [19.0]}),
    (depth_width.grows_and_falls, ([[1.0, 2.0, 2.0]], [[3.0, 2.0]], [6.0, 50.0]), {
        0: [[[2.0, 1.0]], [[1.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]]], 1: [[[2.0, 3.0]], [[3.0, 3.0]]],
        2: [[6.0, 6.0], [7.0, 6.0]]}),
    (depth_width.chooses_all, ({'a': 1.3, 'b': 1.06, 'c': inf},), {0: [{'a': 1.3, 'b': 1.0, 'c': inf}]}),
    (pipemare.has_that_limit, ({0: {0.9: 0.1, 1.1: 9.0}, 3: {0.9: 0.9, 1.1: 1.1}},), {
        0: [{0: {0.9: 1.1, 1.1: 9.0}}, {0: {0.9: 0.1, 1.1: 9.0}, 3: {0.9: 0.9, 1.1: 0.95}}]}),
    (pipemare.is_corrected, ((0.08, 0.01), MEANS, [1, 1]), {
        0: [(0.08, 0.09)], 1: [MEANS | {'T1, T2 and T3': nan}, MEANS | {'late, uncorrected': 0.35},
                              MEANS | {'late, uncorrected': 0.2}], 2: [[2, 1]]}),
    (hydra.trains_by_shards, (True, [0, 1, 2, 1, 0], 3, 200, 300), {
        0: [False], 1: [[0, 1, 2], [0, 1, 2, 2, 1, 0]], 2: [4], 3: [301], 4: [199]}),
    (hydra.hides_transfers, (0.8,), {0: [0.5]}),
    (hydra.keeps_busy, (0.9, 0.7, 0.8, 0.3), {0: [0.7], 1: [0.05], 2: [0.2], 3: [0.9]}),
    (hydra.is_that_much_faster, (6.0, (0.5, 0.9)), {0: [3.9], 1: [(0.57, 0.16)]}),
    (zero.is_shared_out, (1e-4, 0.0, 4), {0: [0.02], 1: [0.1], 2: [9]}),
    (zero_infinity.lives_elsewhere, (True, 300, 901, 24), {0: [False], 1: [200, 400], 2: [600], 3: [31]}),
    (zero_infinity.waits_less, ({0: 0.6, 1: 0.4, 3: 0.2},), {0: [{0: 0.6, 1: 0.2, 3: 0.4}, {0: 0.4, 1: 0.4, 3: 0.2}]}),
    (zero_infinity.is_cheap, (1.015, 1.0), {0: [1.03], 1: [0.9]}),
    (zero_infinity.beats_broadcast, (True, 1.9), {0: [False], 1: [1.2]}),
    (zero_infinity.trains_in_tiles, ([4, 8], True), {0: [[], [1, 2, 4]], 1: [False]}),
    (tensor.moves_as_the_formula, ({1: 0, 2: int(tensor._formula(2))}, 1e-7), {
        0: [{1: 8, 2: int(tensor._formula(2))}, {1: 0, 2: int(tensor._formula(2)) + 4}], 1: [1e-3]}),
    (unet.moves_less, ({'naive': 8.0, 'straight': 6.0, 'aware': 3.0},), {
        0: [{'naive': 8.0, 'straight': 6.0, 'aware': 6.5}, {'naive': 6.0, 'straight': 6.0, 'aware': 3.0}]}),
    (unet.is_flat_and_then_grows, (1.1, 3.9), {0: [2.0], 1: [2.5]}),
    (hybrid.is_sequential, ({'2x2': 1e-7, '4x1': 0.0},), {0: [{'2x2': 1e-7, '4x1': 1e-3}]}),
    (gems.fills_idle_time, (1.3,), {0: [1.0]}),
    (plan.predicts_well, ('1F1B, 4', '1F1B, 4', 0.1), {0: ['plain'], 1: ['plain'], 2: [0.3]}),
    (plan.is_worth_it, (1.5, 240.0, 200.0), {0: [0.9], 1: [190.0], 2: [250.0]}),
    (plan.is_better_where_it_fits, (32, 34), {0: [20], 1: [64, 0]}),
]


# Measured figures that are no nearer to yes than to no: noise must not decide.
TIES = [
    (two_bw.none_is_both, (POINTS | {'flush (1F1B)': (1.98, 5.0)},)),
    (two_bw.none_is_both, (POINTS | {'flush (1F1B)': (2.02, 5.0)},)),
    (hydra.keeps_busy, (0.9, 0.11, 0.8, 0.3)), (hydra.keeps_busy, (0.9, 0.7, 0.8, 0.79)),
    (hydra.keeps_busy, (0.9, 0.7, 0.79, 0.8)),
    (zero_infinity.waits_less, ({0: 0.6, 1: 0.4, 3: 0.39},)), (zero_infinity.waits_less, ({0: 0.41, 1: 0.4, 3: 0.2},)),
    (zero_infinity.waits_less, ({0: 0.6, 1: 0.4, 3: 0.41},)),
    (plan.is_worth_it, (1.02, 240.0, 200.0)), (plan.is_worth_it, (0.98, 240.0, 200.0)),
    (plan.is_worth_it, (1.5, 201.0, 200.0)), (plan.is_worth_it, (1.5, 200.0, 201.0)),
]


@pytest.mark.parametrize('criterion, figures', TIES, ids=lambda value: getattr(value, '__name__', ''))
def test_where_figures_differ_by_less_than_noise_there_is_no_verdict(criterion, figures):
    assert criterion(*figures) is None


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6) | st.just(0.0))
def test_faster_has_a_margin_in_both_directions(one, other):
    got, back = faster(one, other), faster(other, one)
    assert back is (None if got is None else not got)
    assert (got is None) == (max(one, other) < (1 + NOISE) * min(one, other))
    assert faster(one, one) is None and faster(other, other) is None
    assert got is None or got == (one > other)


@given(st.lists(st.sampled_from((True, False, None)), min_size=1))
def test_one_no_is_enough_and_doubt_is_less_than_yes(verdicts):
    assert both(*verdicts) is (False if False in verdicts else None if None in verdicts else True)


@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2), min_size=1, max_size=9),
       st.sampled_from((True, False, None)))
def test_a_busy_machine_has_no_verdict_and_says_so(looks, confirmed):
    quiet, left = Quiet(), iter(looks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('fewgpu.workshop.noise.shares_of_cores', lambda threads: next(left))
        for _ in looks:
            quiet.look()
    assert sum(min(look) <= quiet.share for look in looks) >= len(looks) / 2   # half of the time it was so busy
    assert sum(min(look) >= quiet.share for look in looks) >= len(looks) / 2
    assert quiet.verdict(confirmed) is (confirmed if quiet.share > 0.8 else None)
    assert (quiet.note == '') == (quiet.share > 0.8)


def test_a_machine_that_nobody_looked_at_is_not_called_quiet():
    with pytest.raises(ValueError, match='look at the machine'):
        Quiet().verdict(True)


TIMED = {'hydra': {'C35', 'C37'}, 'zero-infinity': {'C41', 'C42', 'C44'}, 'plan': {'C33', 'C46'}, 'two-bw': {'C30'},
         'pipedream': {'C34'}}


def test_what_is_timed_is_judged_on_a_quiet_machine_only():
    for name, claims in TIMED.items():
        tree = ast.parse(inspect.getsource(import_module(demos._module(name))))
        judged = {ast.literal_eval(call.args[0]): ast.unparse(call.args[1]) for call in ast.walk(tree)
                  if isinstance(call, ast.Call) and ast.unparse(call.func) == 'show.claims.test'}
        assert {claim for claim, verdict in judged.items() if 'quiet.verdict(' in verdict} == claims, name


@pytest.mark.parametrize('criterion, figures, doctored', VERDICTS, ids=lambda value: getattr(value, '__name__', ''))
def test_a_doctored_figure_makes_a_verdict_no(criterion, figures, doctored):
    assert criterion(*figures)
    assert set(doctored) == set(range(len(figures)))   # every figure counts
    for place, values in doctored.items():
        for value in values:
            assert not criterion(*figures[:place], value, *figures[place + 1:]), (place, value)


def test_every_claim_of_every_demo_is_judged_by_a_criterion_that_is_doctored_here():
    doctored, by_demo = {(criterion.__module__, criterion.__name__) for criterion, *_ in VERDICTS}, {}
    for name in DEMOS:
        module = import_module(demos._module(name))
        tree = ast.parse(inspect.getsource(module))
        judged = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
                  and isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == 'show.claims.test']
        by_demo[name] = len(judged)
        for call in judged:
            verdict = call.args[1]
            if isinstance(verdict, ast.Name):   # named before
                verdict = next(node.value for node in ast.walk(tree) if isinstance(node, ast.Assign)
                               and ast.unparse(node.targets[0]) == verdict.id)
            called = {node.func.id for node in ast.walk(verdict)
                      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
            assert any((module.__name__, one) in doctored for one in called), (name, ast.unparse(call.args[0]))
    assert all(by_demo.values())


@given(heads=st.integers(1, 200))
def test_tensors_are_split_by_whole_heads_only(heads):
    model = known('gpt-2.2B')
    width = model.layers[1].output / model.sample
    if width % heads:
        with pytest.raises(ValueError, match=f'{heads} heads do not divide'):
            planned.with_heads(model, heads)
        return
    other = planned.with_heads(model, heads)
    assert other.parameters == model.parameters and other.flops == model.flops and other.heads == heads
    scores = {2.5 * (heads - model.heads) * model.sample**2}   # (arXiv 2205.05198) 5 a s^2 bytes, of numbers of two
    assert {b.stash - a.stash for a, b in zip(model.layers[1:-1], other.layers[1:-1])} == scores
    if heads % planned.CLUSTER.devices:
        with pytest.raises(ValueError, match='cannot be split'):
            planned._tensors(other, 64)
    else:
        assert planned._tensors(other, 64) > 0


def setting(width: int, micro_batch: int, recompute: bool, throughput: float, dropped: str = '') -> Setting:
    return Setting(width, 2, micro_batch, recompute, True, 4, (1, 1), 1.0, throughput, 1.0, dropped)


SETTINGS = st.lists(st.builds(setting, st.sampled_from((1, 2)), st.sampled_from((1, 2)), st.booleans(),
                              st.floats(1, 10)), min_size=1)


@given(plans=st.lists(SETTINGS, min_size=1, max_size=4))
def test_what_a_choice_is_worth_is_what_is_lost_without_it(plans):
    gains = planned.worth(plans)
    assert all(gain >= 1 for gain in gains.values())
    for knob, value_of in planned.KNOBS.items():   # the best fixed value, found by trying all
        lost = []
        for value in {value_of(one) for made in plans for one in made}:
            left = [[one.throughput for one in made if value_of(one) == value] for made in plans]
            lost.append(max(max(one.throughput for one in made) / max(rest) if rest else inf
                            for made, rest in zip(plans, left)))
        assert gains[knob] == min(lost)
    assert planned.worth(plans + [[setting(9, 9, False, 1.0, 'too large'), *plans[0]]]) == gains   # it is not possible


def test_a_choice_that_differs_from_case_to_case_is_worth_something():
    small, large = setting(1, 1, False, 4.0), setting(2, 2, True, 6.0)
    assert planned.worth([[small, large], [small, large]]) == dict.fromkeys(planned.KNOBS, 1.0)
    assert planned.worth([[small], [large]]) == dict.fromkeys(planned.KNOBS, inf)
