"""Collective operations of practice ranks: what they return, and what they send; and the layer without weights."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.workshop.practice.collectives import Uneven, run_ranks
from fewgpu.workshop.practice.dense import Dense
from fewgpu.workshop.practice.misuse import Deadlock, Misuse

BYTES = 8   # of a number


def tensors(ranks: int, length: int) -> list[torch.Tensor]:
    """Rank 1 has 10, 20, 30, ...: sums say who is in them."""
    return [torch.arange(1, length + 1, dtype=torch.float64) * 10**rank for rank in range(ranks)]


@settings(deadline=None, max_examples=30)
@given(ranks=st.integers(1, 6), each=st.integers(0, 5))
def test_a_reduce_scatter_leaves_every_rank_its_piece_of_the_sum_for_a_ring_of_messages(ranks, each):
    given = tensors(ranks, ranks * each)
    done = run_ranks(lambda tensor, rank: rank.reduce_scatter(tensor), given)
    for rank, piece in enumerate(done.results):
        assert torch.equal(piece, sum(given)[rank * each:(rank + 1) * each])
    assert done.bytes_sent == [(ranks - 1) * each * BYTES] * ranks


@settings(deadline=None, max_examples=30)
@given(ranks=st.integers(1, 6), each=st.integers(0, 5))
def test_an_all_gather_brings_the_pieces_together_for_a_ring_of_messages(ranks, each):
    pieces = tensors(ranks, each)
    done = run_ranks(lambda piece, rank: rank.all_gather(piece), pieces, latency=1.0, bandwidth=BYTES)
    assert all(torch.equal(whole, torch.cat(pieces)) for whole in done.results)
    assert done.bytes_sent == [(ranks - 1) * each * BYTES] * ranks
    assert done.makespan == (ranks - 1) * (1.0 + each)


@pytest.mark.parametrize('ranks', [1, 2, 3, 5])
def test_an_all_reduce_is_one_after_the_other(ranks):
    given = tensors(ranks, 2 * ranks)
    done = run_ranks(lambda tensor, rank: rank.all_reduce(tensor), given)
    assert all(torch.equal(total, sum(given)) for total in done.results)
    assert done.bytes_sent == [2 * (ranks - 1) * 2 * BYTES] * ranks


@pytest.mark.parametrize('ranks', [1, 3])
def test_what_is_returned_is_new_and_what_is_given_stays(ranks):
    def change_results(tensor, rank):
        rank.reduce_scatter(tensor).zero_()
        rank.all_gather(tensor).zero_()
        rank.all_reduce(tensor).zero_()
        return tensor

    assert all(map(torch.equal, run_ranks(change_results, tensors(ranks, 3)).results, tensors(ranks, 3)))


def test_what_has_been_gathered_is_known_as_long_as_it_lives():
    def gather(tensor, rank):
        first, second = rank.all_gather(tensor), rank.all_gather(tensor)
        part = first[1:]
        del first, second
        return len(part), [storage() is not None for storage in rank.gathered], [str(call) for call in rank.calls]

    for _, alive, calls in run_ranks(gather, tensors(2, 2)).results:
        assert alive == [True, False]
        assert calls == ['all-gather of 4 numbers'] * 2


def test_a_tensor_without_equal_pieces_is_refused():
    with pytest.raises(Uneven, match='a tensor of 3 numbers has no 2 equal pieces'):
        run_ranks(lambda tensor, rank: rank.reduce_scatter(tensor), tensors(2, 3))


@pytest.mark.parametrize('given', [torch.zeros(2, 2), torch.tensor(1.0)])
def test_a_tensor_has_one_dimension(given):
    with pytest.raises(ValueError, match='one dimension'):
        run_ranks(lambda tensor, rank: rank.all_gather(tensor), [given])
    with pytest.raises(TypeError, match='takes a tensor, not list'):
        run_ranks(lambda tensor, rank: rank.all_reduce([1.0]), [given])


def test_ranks_that_call_different_things_are_told():
    def differ(tensor, rank):
        return rank.reduce_scatter(tensor) if rank.rank else rank.all_gather(tensor)

    with pytest.raises(Misuse, match='all-gather of 4 numbers .* on rank 0 and reduce-scatter of 2 numbers') as told:
        run_ranks(differ, tensors(2, 2))
    assert told.value.misconception == 'different-reductions'


def test_a_rank_that_stays_away_leaves_the_others_in_a_deadlock():
    with pytest.raises(Deadlock, match='rank 1 has ended'):
        run_ranks(lambda tensor, rank: rank.rank or rank.all_gather(tensor), tensors(2, 2))


@settings(deadline=None, max_examples=30)
@given(inputs=st.integers(1, 4), outputs=st.integers(1, 4), rows=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_dense_layer_has_the_gradients_of_autograd(inputs, outputs, rows, seed):
    torch.manual_seed(seed)
    layer, x = Dense(inputs, outputs), torch.randn(rows, inputs, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(layer.numbers, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(rows, outputs, dtype=torch.float64)
    wanted = torch.tanh(x @ weights.view(inputs, outputs))
    assert torch.equal(layer.forward(weights, x), wanted) and not layer.forward(weights, x).requires_grad
    for mine, right in zip(layer.backward(weights, x, gradient), torch.autograd.grad(wanted, (x, weights), gradient)):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_a_dense_layer_takes_its_own_weights_only():
    for shape in [(5,), (7,), (2, 3)]:
        with pytest.raises(ValueError, match='the layer has 6 weights, flat'):
            Dense(2, 3).forward(torch.zeros(math.prod(shape)).view(shape), torch.zeros(1, 2))
