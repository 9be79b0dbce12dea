"""Nobody waits longer than the limit for ranks to come: they are named, and all that come agree how it ended."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import DataParallel, Offloaded, ZeRO, launch
from fewgpu.hybrid import parallelize
from fewgpu.launch import RankDied
from fewgpu.meeting import PeerError, come_together
from fewgpu.transport import Deadlock
from fewgpu.transport.ranks import Ranks

SOON, LATE = 0.3, 1.2   # seconds: a limit, and when somebody comes who is late for it
MSE = nn.functional.mse_loss


class Meeting:
    """Threads as ranks, on one store."""

    def __init__(self, store: dist.Store, members: list[int]) -> None:
        self.store, self.members = store, members

    def ended(self, comings: dict[int, float], limit: float, whats: dict[int, str]) -> dict[int, str]:
        """How it ended for each rank that comes, after so many seconds."""
        def come(rank: int) -> str:
            time.sleep(comings[rank])
            try:
                come_together(self.store, rank, self.members, whats.get(rank, 'make the same'), limit)
            except (PeerError, ValueError) as error:
                return f'{type(error).__name__}: {error}'
            return 'met'
        with ThreadPoolExecutor(len(comings)) as pool:
            return dict(zip(comings, pool.map(come, comings)))


@st.composite
def ranks_and_absent(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    members = sorted(draw(st.sets(st.integers(0, 9), min_size=2, max_size=4)))
    return members, draw(st.lists(st.sampled_from(members), unique=True, min_size=1, max_size=len(members) - 1))


@settings(max_examples=8)
@given(ranks_and_absent(), st.lists(st.floats(0, 0.1), min_size=4, max_size=4))
def test_who_does_not_come_is_named_by_all_that_are_here_and_learns_it_when_it_comes(case, comings) -> None:
    members, absent = case
    meeting = Meeting(dist.HashStore(), members)
    first = meeting.ended({rank: at for rank, at in zip(members, comings)}, 30.0, {})
    ended = meeting.ended({rank: LATE if rank in absent else at for rank, at in zip(members, comings)}, SOON, {})
    again = meeting.ended({rank: 0.0 for rank in members}, 30.0, {})

    assert {*first.values()} == {'met'} == {*again.values()}   # meetings before and after are others
    missing = ', '.join(str(rank) for rank in members if rank in absent)
    for rank in members:
        assert ended[rank].startswith('PeerError')
        if rank in absent:
            assert f'rank {rank} comes to make the same too late' in ended[rank]
        else:
            assert f'still waits for rank {missing} to make the same' in ended[rank], (rank, ended)


@settings(max_examples=8)
@given(st.integers(2, 4), st.data())
def test_ranks_that_come_for_different_things_are_told_so_all_of_them(size, data) -> None:
    whats = {rank: data.draw(st.sampled_from(('make A', 'make B', 'make C'))) for rank in range(size)}
    ended = Meeting(dist.HashStore(), [*range(size)]).ended(dict.fromkeys(range(size), 0.0), 30.0, whats)

    if len({*whats.values()}) == 1:
        assert {*ended.values()} == {'met'}
    else:
        told = ', '.join(f'rank {rank} to {what}' for rank, what in whats.items())
        assert all(f'different things: {told}:' in end for end in ended.values())


def test_of_two_that_are_nearly_late_both_meet_or_none(tmp_path) -> None:
    stores = [dist.HashStore(), dist.FileStore(str(tmp_path / 'store'), 2)]
    for attempt in range(12):
        ended = Meeting(stores[attempt % 2], [0, 1]).ended({0: 0.0, 1: 0.1}, 0.1, {})
        assert len({end == 'met' for end in ended.values()}) == 1, ended


def test_a_store_that_is_gone_is_told_as_a_peer_that_is_gone() -> None:
    server = dist.TCPStore('127.0.0.1', 0, 2, is_master=True, wait_for_workers=False)
    client = dist.TCPStore('127.0.0.1', server.port, 2, is_master=False, timeout=timedelta(seconds=5))
    del server
    with pytest.raises(PeerError, match='rank 1 comes to make the same, but the store of the ranks is gone'):
        come_together(client, 1, [0, 1], 'make the same', 5.0)


# Of the classes

def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def hybrid(limit: float):
    return parallelize(network(), f'{dist.get_world_size()}x1', loss_fn=MSE, optimizer=sgd, time_limit=limit)


ENGINES = {
    'DataParallel': lambda limit: DataParallel(network(), time_limit=limit),
    'ZeRO of stage 2': lambda limit: ZeRO(network(), stage=2, optimizer=sgd, time_limit=limit),
    'Offloaded': lambda limit: Offloaded(network(), optimizer=sgd, loss_fn=MSE, time_limit=limit),
    'grid of': hybrid,
    'Ranks([': lambda limit: Ranks(time_limit=limit),   # of a Pipeline
}


def comes_late(limit: float, seconds: float) -> dict[str, str]:
    """Of every engine: what it raises if the last rank comes so many seconds after the others."""
    said = {}
    for name, make in ENGINES.items():
        dist.barrier()
        start = time.monotonic()
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(seconds)
        try:
            make(limit)
            said[name] = 'made'
        except (PeerError, Deadlock) as error:
            said[name] = f'{error}'
        assert time.monotonic() - start < 40, name
    return said


def different(of_rank_0: str, of_others: str) -> str:
    with pytest.raises(ValueError) as raised:
        ENGINES[of_others if dist.get_rank() else of_rank_0](60.0)
    return str(raised.value)


def each() -> tuple:
    return (comes_late(60.0, 1.0), comes_late(1.0, 6.0), different('ZeRO of stage 2', 'DataParallel'),
            different('DataParallel', 'Ranks(['))


@pytest.mark.slow
@pytest.mark.parametrize('ranks', (2, 3))
def test_every_engine_waits_for_a_late_rank_but_not_longer_than_its_limit(ranks: int) -> None:
    late = ranks - 1
    for rank, (soon, never, *others) in enumerate(launch(each, ranks, time_limit=240)):
        assert {*soon.values()} == {'made'} and {*soon} == {*ENGINES}
        for name, said in never.items():
            if rank == late:
                assert f'rank {late} comes to make the same {name}' in said and 'too late' in said
            else:
                assert f'still waits for rank {late} to make the same {name}' in said
        assert 'rank 0 to make the same ZeRO of stage 2, rank 1 to make the same DataParallel' in others[0]
        assert 'rank 0 to make the same DataParallel, rank 1 to make the same Ranks([0' in others[1]


def dies() -> None:
    if dist.get_rank():
        os._exit(3)
    ENGINES['DataParallel'](60.0)


@pytest.mark.slow
def test_a_rank_that_dies_ends_who_waits_for_it_at_once() -> None:
    with pytest.raises(RankDied, match='rank 1 of 2 ended with exit code 3'):
        launch(dies, 2, time_limit=50)
