"""What the graders of exercises 12 and 13 judge by: it is itself held to definitions and to brute force."""

from itertools import product
from random import Random

import pytest
import torch

from fewgpu.workshop.graders import skip_guesses, skipping, zero_guesses, zero_layers, zero_step
from fewgpu.workshop.graders.skipping import Case
from fewgpu.workshop.grading.law import close


@pytest.mark.parametrize('case', zero_step.cases(Random(0)), ids=str)
def test_ranks_that_train_their_pieces_without_a_misconception_do_what_the_plain_optimizer_does(case):
    assert close(zero_step.played(case), zero_step.plain(case))


@pytest.mark.parametrize('model', zero_layers.models(Random(0)), ids=str)
def test_a_backward_without_a_misconception_has_the_pieces_of_the_mean_of_autograds_gradients(model):
    assert close(zero_guesses._pieces(model), zero_layers.mean_pieces(model))
    assert close(zero_guesses._outputs(model), model.outputs())


@pytest.mark.parametrize('model', zero_layers.models(Random(1)), ids=str)
def test_pieces_put_together_are_the_weights_and_zeros(model):
    for layer, weights in enumerate(model.weights()):
        whole = torch.cat([model.pieces(rank)[layer] for rank in range(model.ranks)])
        assert torch.equal(whole[:len(weights)], weights) and not whole[len(weights):].any()
        assert len(whole) == model.piece(layer) * model.ranks < len(weights) + model.ranks


@pytest.mark.parametrize(('layers', 'gpus'), [(2, 1), (4, 1), (4, 2), (6, 2), (6, 3), (8, 2), (8, 3)])
def test_a_placement_is_found_right_exactly_if_no_skip_is_copied_work_is_equal_and_none_copies_x_less(layers, gpus):
    def copies(placement: tuple[int, ...]) -> int:
        return sum(here != there for here, there in zip(placement, placement[1:]))

    def is_fair(placement: tuple[int, ...]) -> bool:
        skips = tuple((str(k), k, layers - 1 - k) for k in range(layers // 2))
        of_skips = [move for move in skipping.straight(Case(placement, skips)) if move[0] != 'x']
        work = [placement.count(gpu) for gpu in range(gpus)]
        return not of_skips and max(work) - min(work) <= 2

    fair = [placement for placement in product(range(gpus), repeat=layers) if is_fair(placement)]
    best = {placement for placement in fair if copies(placement) == min(map(copies, fair))}
    assert best == {placement for placement in product(range(gpus), repeat=layers)
                    if not skip_guesses.broken((layers, gpus), list(placement))}


@pytest.mark.parametrize('case', [*skipping.cases(Random(0)), *skipping.cases(Random(0), equal=False)], ids=str)
def test_cases_of_long_skips_keep_what_the_exercise_promises(case):
    assert case.skips and len(set(case.saves.values())) == len(set(case.loads.values())) == len(case.skips)
    assert all(saver < loader - 1 for _, saver, loader in case.skips)
    assert len(skipping.straight(case)) <= len(skipping.through(case))
    ends_meet = all(case.placement[saver] == case.placement[loader] for _, saver, loader in case.skips)
    assert ends_meet == all(what == 'x' for what, *_ in skipping.straight(case))
