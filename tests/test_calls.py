"""Ranks that call different collectives: all are told which two calls, and from where; healthy ones hear nothing."""

import random
import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fewgpu.calls import Call, DifferentCalls, difference
from fewgpu.collectives import (Group, PeerError, all_gather, all_reduce, all_to_all, broadcast, gather, reduce,
                                reduce_scatter, scatter)
from fewgpu.launch import launch

BACKENDS = 'gloo', 'cpu:gloo'   # the second as where GPUs have NCCL, and tensors on the host gloo
DTYPES = 'float32', 'float64', 'int64', 'int32'


class Asked:
    """A random collective; `call(group)` makes it."""

    def __init__(self, draw: random.Random, size: int) -> None:
        self.name = draw.choice(['all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'reduce', 'scatter',
                                 'gather', 'all_to_all'])
        self.shape, self.dtype = [draw.randint(1, 4) for _ in range(draw.randint(1, 2))], draw.choice(DTYPES)
        self.root, self.op = draw.randrange(size), draw.choice(['sum', 'max', 'min'])

    def same_as(self, other: 'Asked') -> bool:
        """Root and op count only where they are used."""
        used = ['name', 'shape', 'dtype']
        used += ['root'] if self.name in ('broadcast', 'reduce', 'scatter', 'gather') else []
        used += ['op'] if 'reduce' in self.name else []
        return all(getattr(self, each) == getattr(other, each) for each in used)

    def call(self, group: Group) -> None:
        tensor = torch.ones(self.shape, dtype=getattr(torch, self.dtype))
        pieces = [tensor.clone() for _ in range(group.size)]
        at_root = pieces if group.rank == self.root else None
        {'all_reduce': lambda: all_reduce(tensor, group, self.op),
         'reduce_scatter': lambda: reduce_scatter(pieces, group, self.op),
         'all_gather': lambda: all_gather(pieces, group), 'broadcast': lambda: broadcast(tensor, group, self.root),
         'reduce': lambda: reduce(tensor, group, self.root, self.op),
         'scatter': lambda: scatter(tensor, at_root, group, self.root),
         'gather': lambda: gather(tensor, at_root, group, self.root),
         'all_to_all': lambda: all_to_all(pieces, [tensor.clone() for _ in pieces], group)}[self.name]()


def _odd_one_out(seed: int, cases: int, folder: str) -> list[tuple]:
    """In each case one rank makes another call than the others; what each rank was told."""
    told = []
    for case in range(cases):
        draw = random.Random(f'{seed} {case}')
        group = Group(dist.new_group(backend=draw.choice(BACKENDS)), time_limit=60.0)
        usual = [Asked(draw, group.size) for _ in range(3)]
        odd, rank = Asked(draw, group.size), draw.randrange(group.size)
        while odd.same_as(usual[-1]):
            odd = Asked(draw, group.size)
        for asked in usual[:-1]:
            asked.call(group)
        mine, said = odd if group.rank == rank else usual[-1], ''
        try:
            mine.call(group)
        except (DifferentCalls, PeerError) as error:
            said = f'{type(error).__name__}: {error}'
        Path(folder, f'{case} {group.rank}').touch()
        until = time.monotonic() + 60   # nobody leaves before all were told
        while len([*Path(folder).glob(f'{case} *')]) < group.size and time.monotonic() < until:
            time.sleep(0.02)
        told.append((rank, usual[-1].name, odd.name, said))
    return told


@pytest.mark.parametrize('ranks', [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_rank_that_makes_another_call_is_named_with_both_calls_by_all_who_wait(ranks: int, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    for case in zip(*launch(_odd_one_out, ranks, args=(seed, 6, str(tmp_path)))):
        rank, usual, odd, _ = case[0]
        said = {told[-1] for told in case} - {''}   # of a tree, or a scatter, a rank may be through
        assert len(said) == 1, case
        sentence = said.pop()
        assert sentence.startswith('DifferentCalls: ') and 'in the same order' in sentence, case
        calls = dict(re.findall(r'rank (\d) calls (\w+)', sentence))
        assert len(calls) == 2, case
        if str(rank) in calls:   # else two others wait for each other, as roots and leaves of other trees
            assert calls.pop(str(rank)) == odd and {*calls.values()} == {usual}, case
        assert len(re.findall(r'\(test_calls\.py:\d+\)', sentence)) == 2, case


def _slow_but_healthy(seed: int) -> int:
    """Ranks come late, in turn, by more than the time after which calls are compared."""
    draw = random.Random(seed)
    group = Group(dist.new_group(backend=draw.choice(BACKENDS)), time_limit=60.0)
    for late in range(group.size):
        asked = [Asked(draw, group.size) for _ in range(3)]
        if group.rank == late:
            time.sleep(1.6)
        for each in asked:
            each.call(group)
    return group.bytes_sent


def test_ranks_that_come_late_to_the_same_calls_are_told_nothing() -> None:
    assert all(launch(_slow_but_healthy, 2, args=(random.randrange(10**6),)))   # bytes that both have sent


def test_calls_are_compared_by_number_and_words_and_by_nothing_else() -> None:
    call = Call('all_reduce', [torch.zeros(2, 3)], 'sum')
    call.begin(7)
    assert call == 'all_reduce' and call.site.startswith('test_calls.py:')
    assert call.words() == 'all_reduce of float32 [2, 3], sum'
    assert difference(0, call.head(), 1, call.head()) is None
    assert difference(0, call.head(), 1, call.head().replace('7|', '8|').replace('sum', 'max')) is None   # it is ahead
    for junk in ('', 'x', '7|x', '\ufffd' * 100):   # anybody may write into the store
        assert difference(0, call.head(), 1, junk) is None
    assert difference(0, call.head(), 1, call.head().replace(call.site, 'x.py:1')) is None
    different = difference(3, call.head(), 1, call.head().replace('sum', 'max').replace(call.site, 'x.py:1'))
    assert 'rank 1 calls all_reduce of float32 [2, 3], max (x.py:1) where rank 3 calls all_reduce' in str(different)
    pieces = Call('scatter', None, 'root 1')
    assert pieces.words(torch.zeros(4)) == 'scatter of float32 [4], root 1' and pieces.words() == 'scatter, root 1'
    assert pieces.tag(torch.zeros(4)) != pieces.tag(torch.zeros(5))
    assert Call('all_gather', [torch.zeros(4)] * 8).words() == 'all_gather of float32 8 x [4]'
