"""Ranks to practise with: what takes how long, and what is said when they do not talk to each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.workshop.practice.misuse import Deadlock, Misuse
from fewgpu.workshop.practice.ranks import run_ranks
from fewgpu.workshop.practice.wires import ChangedInFlight


def test_a_message_takes_latency_and_its_bytes_over_bandwidth():
    def pass_on(rank):
        if rank.rank == 0:
            rank.send(torch.zeros(4), 1)
        else:
            rank.receive(0)

    run = run_ranks(pass_on, [(), ()], latency=3.0, bandwidth=8.0)
    assert run.clocks == [0.0, 3.0 + 16 / 8]
    assert (run.bytes_sent, run.messages_sent) == ([16, 0], [1, 0])


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 9), max_size=4), st.floats(0.0, 3.0), st.floats(0.0, 9.0))
def test_who_waits_for_sends_goes_on_when_the_last_has_arrived_received_or_not(sizes, latency, late):
    def talk(rank):
        if rank.rank == 0:
            for size in sizes:
                rank.send(torch.zeros(2 * size), 1)
            rank.wait_for_sends()
            before = rank.clock
            rank.wait_for_sends()   # nothing is on its way any more
            return before, rank.clock
        rank.work(late)
        for _ in sizes:
            rank.receive(0)

    done = sum(sizes) + latency if sizes else 0.0
    assert run_ranks(talk, [(), ()], latency=latency, bandwidth=8.0).results[0] == pytest.approx((done, done))


def test_one_message_at_a_time_comes_in_at_a_rank():
    def collect(rank):
        if rank.rank:
            rank.send(torch.zeros(2), 0)
        else:
            for other in range(1, rank.size):
                rank.receive(other)

    run = run_ranks(collect, [()] * 5, latency=1.0, bandwidth=8.0)
    assert run.makespan == 1.0 + 4 * 1.0


def test_a_message_that_waits_for_its_turn_lets_earlier_ones_through():
    """Rank 0's second message stands behind its first; rank 2 reaches rank 3 before it."""
    def talk(rank):
        if rank.rank == 0:
            rank.send(torch.zeros(20), 1)
            rank.send(torch.zeros(2), 3)
        if rank.rank == 2:
            rank.work(1.0)
            rank.send(torch.zeros(2), 3)
        if rank.rank == 1:
            rank.receive(0)
        if rank.rank == 3:
            rank.receive(2)
            came = rank.clock
            rank.receive(0)
            return came, rank.clock

    assert run_ranks(talk, [()] * 4, bandwidth=8.0).results[3] == (2.0, 11.0)


def test_the_tensor_that_is_sent_is_a_copy():
    def change_it(rank):
        if rank.rank:
            return rank.receive(0)
        tensor = torch.ones(1)
        rank.send(tensor, 1)
        tensor.zero_()

    assert run_ranks(change_it, [(), ()]).results[1] == 1


def test_reductions_run_beside_work_one_after_the_other():
    def two(mine, rank):
        first, second = mine.clone(), mine * 10
        handles = [rank.start_all_reduce(first), rank.start_all_reduce(second)]
        assert first.isnan().all()   # until wait() its content is undefined
        rank.work(5.0)
        for handle in handles:
            handle.wait()
        return first, second

    run = run_ranks(two, [torch.tensor([1.0]), torch.tensor([2.0])], latency=2.0)
    assert run.results == [(3.0, 30.0)] * 2
    assert run.makespan == 2 * (2 * 2.0)   # 2 (N - 1) latencies each, more than the work


def test_a_backward_spends_virtual_time():
    def backward(rank):
        w = torch.ones(1, requires_grad=True)
        rank.backward_takes(1.5, rank.backward_takes(2.0, w * 3) * 2).sum().backward()
        return w.grad.item()

    run = run_ranks(backward, [(), ()])
    assert (run.results, run.clocks) == ([6.0, 6.0], [3.5, 3.5])


def test_a_deadlock_is_seen_at_once_and_says_who_waits_for_whom():
    def receive_first(rank):
        if rank.rank < 2:
            rank.receive(1 - rank.rank)

    told = 'Rank 0 waits for a message from rank 1; rank 1 waits .* rank 2 has ended'
    with pytest.raises(Deadlock, match=told) as found:
        run_ranks(receive_first, [()] * 3)
    assert any(entry.name == 'receive_first' for entry in found.traceback)   # the line that waits can be shown


def test_an_exception_of_one_rank_comes_out_and_ends_the_others():
    def fail(rank):
        if rank.rank == 1:
            raise ZeroDivisionError('on purpose')
        rank.receive(1)

    with pytest.raises(ZeroDivisionError, match='on purpose'):
        run_ranks(fail, [()] * 3)


def leave_a_message(rank):
    if rank.rank == 0:
        rank.send(torch.zeros(1), 1)


def leave_a_reduction(rank):
    rank.start_all_reduce(torch.zeros(1))


def change_in_flight(rank):
    tensor = torch.zeros(1)
    handle = rank.start_all_reduce(tensor)
    tensor += 1
    handle.wait()


@pytest.mark.parametrize('function, misconception', [
    (lambda rank: rank.send(torch.zeros(1), rank.rank), 'talks-to-itself'),
    (lambda rank: rank.send(torch.zeros(1), rank.rank + 1), 'no-such-rank'),
    (lambda rank: rank.receive(-1), 'no-such-rank'),
    (leave_a_message, 'never-received'),
    (leave_a_reduction, 'never-waited'),
    (change_in_flight, 'changed-in-flight'),
    (lambda rank: rank.start_all_reduce(torch.zeros(1 + rank.rank)).wait(), 'different-reductions'),
])
def test_other_ways_not_to_talk_to_each_other_are_named(function, misconception):
    with pytest.raises(Misuse) as found:
        run_ranks(function, [(), ()])
    assert found.value.misconception == misconception


def test_a_rank_knows_what_it_has_not_waited_for():
    def two(rank):
        first, second = (rank.start_all_reduce(torch.ones(1)) for _ in range(2))
        before = rank.unfinished
        second.wait()
        after = rank.unfinished
        first.wait()
        return before, after, rank.unfinished

    assert run_ranks(two, [(), ()]).results == [([0, 1], [0], [])] * 2


def test_what_was_sent_is_told_of_a_tensor_that_is_changed_in_flight():
    with pytest.raises(ChangedInFlight, match='tensor of 1 number has') as found:
        run_ranks(change_in_flight, [(), ()])
    assert found.value.sent.tolist() == [0]


def test_a_rank_that_computes_without_end_is_ended():
    def turn(rank):
        while not stop:
            pass

    stop = []
    with pytest.raises(Misuse, match='has computed') as found:
        try:
            run_ranks(turn, [()], time_limit=0.05)
        finally:
            stop.append(True)
    assert found.value.misconception == 'too-slow'
