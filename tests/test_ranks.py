"""A schedule runs on ranks as on threads, and whatever holds a rank up explains itself.

Every start of a rank imports torch: each function that is launched here tries several things.
"""

import threading
import time
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu.launch import launch
from fewgpu.schedule import Op, Schedule, activation, gpipe, target, with_messages
from fewgpu.transport import Deadlock, Mailbox, Parcel
from fewgpu.transport.ranks import RankFailed, Ranks
from tests.pipes import settled
from tests.rows import attempt, batches, by_hand, gradients, network, rows, run_rows

def train(size: int) -> tuple[list, list]:
    """Some steps on this rank; what came out, and the gradients."""
    ranks, layers = Ranks(list(reversed(range(size)))), network(size)
    schedule = by_hand(size)
    values = [run_rows([ranks.index], ranks.mailbox(schedule), schedule, layers, inputs)
              for inputs in batches(6)]
    assert ranks.tell(0, ['word', ranks.index]) == ['word', 0]
    return values, gradients(layers)[ranks.index]   # nobody closes: Python's end does


@pytest.mark.parametrize('size', [2, 3])
def test_a_schedule_written_by_hand_runs_on_ranks_as_on_threads(size: int, capfd) -> None:
    layers, schedule = network(size), by_hand(size)
    values = [run_rows(range(size), Mailbox(schedule), schedule, layers, inputs)
              for inputs in batches(6)]
    results = launch(train, ranks=size, args=(size,), time_limit=60)
    results.reverse()   # the rows are dealt out in this order
    assert all(same(got, want) for (_, got), want in zip(results, gradients(layers)))
    assert same(results[-1][0], values)
    assert 'terminate' not in capfd.readouterr().out


def same(got: Any, want: Any) -> bool:
    if isinstance(want, torch.Tensor):
        return got.equal(want) and got.requires_grad == want.requires_grad
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    if isinstance(want, (tuple, list)):
        return len(got) == len(want) and all(map(same, got, want))
    return got == want


def several() -> dict[str, Any]:
    """Two Ranks at once, one after the other, and of some members only; messages run ahead."""
    me, seen = dist.get_rank(), {}
    schedule, layers = by_hand(2), network(2)
    if me < 2:   # the third rank makes none
        pair, other = Ranks([0, 1]), Ranks([1, 0])
        results: dict[str, list] = {}

        def run(name: str, ranks: Ranks) -> None:
            results[name] = [attempt(ranks, schedule, layers, inputs) for inputs in batches(3)]

        threads = [threading.Thread(target=run, args=item) for item in (('pair', pair), ('other', other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pair.close()
        seen['at once'] = results['pair'][1:] if pair.index == 1 else results['other'][1:]
        third = Ranks([0, 1])
        run('third', third)
        seen['third'] = results['third'][1:]
        other.close()
        third.close()
    everybody = Ranks()
    sent: list[weakref.ref] = []
    seen['ahead'] = run_ahead(everybody, sent)
    seen['kept'] = not settled(lambda: not any(reference() is not None for reference in sent))
    seen['target'] = reach_the_last_stage(everybody)
    everybody.close()
    try:
        everybody.tell(0, 1)
    except RankFailed as error:
        seen['closed'] = str(error)
    return seen


def run_ahead(ranks: Ranks, sent: list[weakref.ref]) -> list:
    """Rank 0 sends what the last rank takes later: (step, value), and how far it was ahead."""
    schedule, taken = with_messages(gpipe(3, 1).halves()[0]), []
    for step in range(8):
        mailbox = ranks.mailbox(schedule)
        if ranks.index == 0:
            tensor = torch.full((3000,), float(step))
            sent.append(weakref.ref(tensor))
            for stage in (2, 1):
                mailbox.send(activation(stage, 0), Parcel.of((step, tensor)))
        elif ranks.index == 2:
            time.sleep(0.05)   # the others would be through by now
            number, tensor = mailbox.recv(activation(2, 0), 2).value
            taken.append((number == step and bool((tensor == step).all()), ranks._begun[0][0] - step - 1))
        mailbox.done(ranks.index)
    return taken


def reach_the_last_stage(ranks: Ranks) -> Any:
    """A message of the caller for a stage elsewhere goes there, one to the outside stays."""
    mailbox = ranks.mailbox(with_messages(gpipe(3, 1).halves()[0], targets=True))
    if ranks.index == 0:
        mailbox.send(target(2, 0), Parcel.of('a target'))
    mailbox.send(activation(3, 0), Parcel.of(ranks.index))
    got = mailbox.recv(target(2, 0), 2).value if ranks.index == 2 else None
    return got, mailbox.take(activation(3, 0)).value


def test_several_ranks_at_once_one_after_the_other_and_ahead_of_each_other(capfd) -> None:
    results = launch(several, ranks=3, time_limit=60)
    schedule, layers = by_hand(2), network(2)
    values = [run_rows([0, 1], Mailbox(schedule), schedule, layers, inputs) for inputs in batches(3)]
    assert same(results[1]['third'], values[1:])
    assert same(results[0]['at once'], values[1:]) and same(results[1]['at once'], values[1:])
    assert not any(result['kept'] for result in results)   # the memory of what was sent is free
    right, ahead = zip(*results[2]['ahead'])
    assert all(right) and 1 <= max(ahead) <= 3   # the third step ahead waits to begin
    assert results[2]['target'] == ('a target', 2) and results[0]['target'] == (None, 0)
    assert all('are closed' in result['closed'] for result in results)
    assert 'terminate' not in capfd.readouterr().out


def go_wrong(how: str) -> list[str]:
    """What each step says on this rank, until one says something."""
    dist.barrier()   # the limit is not for imports
    ranks = Ranks(time_limit=3 if how in ('circle', 'slow') else 60)
    schedule, layers = by_hand(3), network(3)
    if how == 'error' and ranks.index == 1:
        layers[1] = FailsIn(2)
    if how == 'slow' and ranks.index == 1:
        layers[1] = nn.Sequential(layers[1], Sleep())
    if how == 'circle':
        schedule = with_messages(Schedule('wrong', 3, 2, rows('F0 B0 F1', 'F0 F1 B0', 'F0 F1 B0')))
    if how == 'other plan' and ranks.index == 2:
        schedule = with_messages(gpipe(3, 3))
    steps = 1 if how == 'leaves' and ranks.index == 1 else 3
    said = [attempt(ranks, schedule, layers, inputs) for inputs in batches(steps)]
    if how == 'leaves' and ranks.index == 1:
        ranks.close()
    return [words for words in said if isinstance(words, str)]


class FailsIn(nn.Module):
    """Fails in a forward, counted from 0, of some step: three micro-batches a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = 3 * (step - 1)

    def forward(self, x: torch.Tensor) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ArithmeticError('the real one')
        return network(3)[1](x)


class Sleep(nn.Module):
    def forward(self, value: Any) -> Any:
        time.sleep(5)
        return value


def test_an_error_reaches_all_ranks_and_says_which_rank_failed_and_how() -> None:
    first, second, third = launch(go_wrong, ranks=3, args=('error',), time_limit=60)
    assert second[0] == 'ArithmeticError: the real one'
    for said in (first[-1], third[-1], second[-1]):   # and so does every later step
        assert said.startswith('RankFailed: rank 1 failed in step 2: ArithmeticError: the real one (in '
                               'stage 1 on CPU 0, forward of micro-batch 0')


@pytest.mark.slow
def test_a_missing_message_is_explained_with_the_chain_across_ranks() -> None:
    said = [words[0] for words in launch(go_wrong, ranks=3, args=('circle',), time_limit=60)]
    first = [words for words in said if words.startswith('Deadlock')]
    assert first
    for words in first:
        assert 'Deadlock: after 3 s rank ' in words and ' of step 1: ' in words
        assert 'stage 0 waits for B0 from stage 1' in words
        assert 'stage 1 waits for F1 from stage 0' in words
    assert all('stage 0 waits for B0 from stage 1' in words for words in said)   # whoever says it


@pytest.mark.slow
def test_a_wait_for_a_rank_that_computes_says_where_that_one_is() -> None:
    said = [words[0] for words in launch(go_wrong, ranks=3, args=('slow',), time_limit=60)]
    assert 'Deadlock: after 3 s rank ' in said[0] or 'Deadlock: after 3 s rank ' in said[2]
    assert all('rank 1 is at F0 of step 1' in words for words in said)


@pytest.mark.slow
def test_ranks_that_take_other_steps_say_so() -> None:
    for said in launch(go_wrong, ranks=3, args=('other plan',), time_limit=60):
        assert 'in step 1 rank ' in said[0] and 'gpipe with 3 stages' in said[0]
    first, second, third = launch(go_wrong, ranks=3, args=('leaves',), time_limit=60)
    assert second == []
    for said in (first[0], third[0]):
        assert 'rank 1 ended after step 1' in said


BACKWARDS = Schedule('backwards', 2, 1, ((Op('F', 1, 0), Op('F', 0, 0)),))


def refused() -> list[str]:
    said = []
    for members in ([1 - dist.get_rank()], [0, 0], [0, 5]):
        try:
            Ranks(members)
        except ValueError as error:
            said.append(str(error))
    if dist.get_rank() == 0:
        try:
            Ranks(time_limit=1)   # the other one makes none
        except Deadlock as error:
            said.append(str(error))
        alone = Ranks([0])
        said.append(attempt(alone, with_messages(BACKWARDS), network(2), [torch.ones(1, 3)]))
        alone = Ranks([0])   # after an error the other one is of no more use
        schedule = with_messages(gpipe(1, 1).halves()[0])
        said.append(attempt(alone, schedule, network(1), [torch.ones(1, 3)])[0]['number'])
        try:
            alone.mailbox(with_messages(gpipe(2, 1)))
        except ValueError as error:
            said.append(str(error))
    dist.barrier()   # both are here
    dist.destroy_process_group()   # with Ranks open
    return said


def test_wrong_members_are_refused_and_a_missing_one_is_named() -> None:
    said = launch(refused, ranks=2, time_limit=60)[0]
    assert all('have to be different ranks of the 2 there are' in words for words in said[:3])
    assert said[3] == 'after 1 s rank 0 still waits for rank 1 to make the same Ranks([0, 1])'
    assert said[4] == 'Deadlock: deadlock: stage 1 waits for F0 from stage 0'
    assert said[5] == 0
    assert said[6] == 'the schedule gpipe has 2 rows, but there are 1 ranks, to run one each'
    with pytest.raises(RuntimeError, match='start the ranks with fewgpu.launch'):
        Ranks()
