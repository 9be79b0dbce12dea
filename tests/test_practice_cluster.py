"""The model, cluster and plan of exercise 16, against what is published."""

import dataclasses

import pytest

from fewgpu.workshop.practice import cluster
from fewgpu.workshop.practice.cluster import GPT, GPUS, Plan


def test_gpt_has_the_size_that_was_published() -> None:
    """PipeDream-2BW's model of 2.2 billion parameters (arXiv 2006.09503) is the blocks and the embeddings."""
    embeddings = (51200 + 512) * 1920
    assert GPT.blocks * cluster.PARAMETERS + embeddings == pytest.approx(2.2e9, rel=0.02)


def test_backward_of_a_block_takes_two_forwards() -> None:
    assert GPT.backward == pytest.approx(2 * GPT.forward)


def test_gpt_does_not_fit_one_device_and_fits_all() -> None:
    everything = GPT.blocks * (GPT.weights + GPT.state)
    assert GPUS.memory < everything < GPUS.devices * GPUS.memory


def test_a_plan_says_what_it_is() -> None:
    assert str(Plan(8, 4, 2)) == 'depth 8, width 4, micro-batches of 2'
    assert str(Plan(8, 4, 2, recompute=True)) == 'depth 8, width 4, micro-batches of 2, with recompute'


def test_plans_are_values() -> None:
    assert {Plan(2, 2, 1), Plan(2, 2, 1)} == {Plan(depth=2, width=2, micro_batch=1, recompute=False)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(1, 1, 1).depth = 2
