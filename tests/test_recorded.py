"""Recorded collectives do what their names say, in the rounds, messages and bytes of their formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.collectives import (all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter,
                                scatter)
from fewgpu.workshop.recorded import OPERATIONS, on_ranks, record

ROUNDS = {'send, receive': lambda n: 1, 'broadcast': lambda n: math.ceil(math.log2(n)),
          'scatter': lambda n: 1,
          'gather': lambda n: 1, 'all-gather': lambda n: n - 1, 'all-to-all': lambda n: n - 1,
          'all-reduce': lambda n: 2 * (n - 1), 'reduce-scatter': lambda n: n - 1}
MESSAGES = {'send, receive': lambda n: 1, 'broadcast': lambda n: n - 1, 'scatter': lambda n: n - 1,
            'gather': lambda n: n - 1, 'all-gather': lambda n: n * (n - 1),
            'all-to-all': lambda n: n * (n - 1),
            'reduce': lambda n: n - 1, 'all-reduce': lambda n: 2 * n * (n - 1),
            'reduce-scatter': lambda n: n * (n - 1)}

every_operation = pytest.mark.parametrize('operation', OPERATIONS)
every_size = pytest.mark.parametrize('n', range(2, 9))


def expected(operation, rank, piece, n):
    """What is in a piece of a rank afterwards, by the definition of the operation."""
    mine, total = {(piece, rank)}, {(piece, other) for other in range(n)}
    root = rank == 0
    return {'send, receive': {(0, 0)} if rank <= 1 else set(),
            'broadcast': {(0, 0)},
            'scatter': {(piece, 0)} if root or piece == rank else set(),
            'gather': {(piece, piece)} if root or piece == rank else set(),
            'all-gather': {(piece, piece)},
            'all-to-all': {(rank, piece)},
            'reduce': total if root else mine,
            'all-reduce': total,
            'reduce-scatter': total if piece == rank else mine}[operation]


@every_operation
@every_size
def test_afterwards_every_rank_has_what_the_operation_promises_and_nothing_twice(operation, n):
    kept = record(operation, n)
    for rank, row in enumerate(kept.grids[-1]):
        for piece, cell in enumerate(row):
            assert set(cell) == expected(operation, rank, piece, n)
            assert len(set(cell)) == len(cell)


@every_operation
@every_size
def test_rounds_and_messages_are_as_many_as_the_formulas_say(operation, n):
    kept = record(operation, n)
    assert len(kept.arrows) == MESSAGES[operation](n)
    assert {arrow.round for arrow in kept.arrows} == {*range(1, kept.rounds + 1)}
    if operation in ROUNDS:
        assert kept.rounds == ROUNDS[operation](n)
    else:   # a rank without a partner of its own may send a round earlier than in the formula
        assert kept.rounds <= math.ceil(math.log2(n))


@every_operation
@every_size
def test_what_is_new_in_a_row_has_come_in_a_message_or_was_there(operation, n):
    kept = record(operation, n)
    for number in range(1, kept.rounds + 1):
        for rank in range(n):
            seen = {part for cell in kept.grids[0][rank] for part in cell}
            seen |= {part for arrow in kept.arrows if arrow.target == rank and arrow.round <= number
                     for cell in arrow.cells for part in cell}
            assert {part for cell in kept.grids[number][rank] for part in cell} <= seen


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 20), st.integers(0, 10**6))
def test_collectives_on_threads_compute_what_they_do_on_ranks(n, numbers, seed):
    values = torch.randint(-9, 10, (n, numbers), generator=torch.Generator().manual_seed(seed))

    def body(group):
        mine = values[group.rank].clone()
        all_reduce(total := mine.clone(), group)
        reduce(at_root := mine.clone(), group, root=n - 1)
        broadcast(first := mine.clone(), group)
        pieces = list(mine.clone().tensor_split(n))
        own = reduce_scatter(pieces, group)
        rows = [torch.empty_like(mine) for _ in range(n)]
        rows[group.rank] = mine
        all_gather(rows, group)
        collected = [torch.empty_like(mine) for _ in range(n)]
        gather(mine, collected, group)
        scatter(dealt := torch.empty_like(mine), collected if group.rank == 0 else None, group)
        turned = [torch.empty_like(mine) for _ in range(n)]
        all_to_all(turned, [mine + other for other in range(n)], group)
        return total, at_root, first, own, torch.stack(rows), dealt, torch.stack(turned)

    whole = values.sum(0)
    for rank, (total, at_root, first, own, rows, dealt, turned) in enumerate(on_ranks(body, n).results):
        assert torch.equal(total, whole) and torch.equal(first, values[0]) and torch.equal(rows, values)
        assert torch.equal(at_root, whole if rank == n - 1 else values[rank])
        assert torch.equal(own, whole.tensor_split(n)[rank]) and torch.equal(dealt, values[rank])
        assert torch.equal(turned, values + rank)


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 50), st.floats(0.0, 2.0), st.floats(1.0, 100.0))
def test_the_ring_takes_the_bytes_and_the_time_of_its_formula(n, piece, latency, bandwidth):
    size = 4 * n * piece
    run = on_ranks(lambda group: all_reduce(torch.ones(n * piece), group), n, latency=latency,
                   bandwidth=bandwidth)

    assert run.bytes_sent == [2 * (n - 1) * size // n] * n
    assert run.makespan == pytest.approx(2 * (n - 1) * latency + 2 * (n - 1) / n * size / bandwidth)


@pytest.mark.parametrize('n', [1, 2, 4, 8])
def test_a_tree_takes_log2_n_messages_one_after_the_other(n):
    run = on_ranks(lambda group: broadcast(torch.ones(10), group), n, latency=1.0, bandwidth=20.0)

    assert run.makespan == pytest.approx(math.log2(n) * 3.0)


def test_what_cannot_be_recorded_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="no 'bcast'; there are send, receive, broadcast"):
        record('bcast')
    with pytest.raises(ValueError, match='two ranks'):
        record('gather', ranks=1)
