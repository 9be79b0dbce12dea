"""Collectives from sends and receives equal torch.distributed's, and send what the formulas say."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fewgpu.collectives import (Group, PeerError, all_gather, all_reduce, all_to_all, broadcast,
                                gather, reduce, reduce_scatter, scatter)
from fewgpu.launch import launch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OPS = {'sum': dist.ReduceOp.SUM, 'max': dist.ReduceOp.MAX, 'min': dist.ReduceOp.MIN}
SHAPES = [(), (0,), (1,), (3, 0), (2,), (5,), (3, 4), (7, 1, 2), (100,), (33, 31)]


class Case:
    """One random case, the same on all ranks but for the numbers."""

    def __init__(self, seed: int, group: Group) -> None:
        self.group, self.draw = group, random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed * 97 + group.rank)
        self.dtype = self.draw.choice([*FLOATS, *INTEGERS, torch.bool])
        self.shape = self.draw.choice(SHAPES)
        self.root = self.draw.randrange(group.size)
        ops = ['max', 'min'] if self.dtype == torch.bool else ['sum', 'max', 'min']
        self.op = self.draw.choice([*ops, 'mean'] if self.dtype.is_floating_point else ops)
        self.strided = self.draw.random() < 0.3
        self.said = (f'seed {seed}: {group.size} ranks, {self.dtype}, shape {self.shape}, {self.op}, '
                     f'root {self.root}, {"strided" if self.strided else "contiguous"}')

    def tensor(self, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        shape = self.shape if shape is None else shape
        wide = (*shape, 2) if self.strided else shape   # every other element of something wider
        values = torch.randint(-9, 10, wide, generator=self.numbers)
        if self.dtype.is_floating_point:
            values = values + torch.rand(wide, generator=self.numbers)
        values = values.abs() if self.dtype == torch.uint8 else values
        values = (values > 0) if self.dtype == torch.bool else values.to(self.dtype)
        return values[..., 0] if self.strided else values

    def pieces(self) -> list[torch.Tensor]:
        """One a rank, of any sizes."""
        return [self.tensor((self.draw.choice([0, 1, 2, 5, 40]),)) for _ in range(self.group.size)]

    def all_values(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, by torch.distributed."""
        gathered = [torch.empty_like(tensor, memory_format=torch.contiguous_format)
                    for _ in range(self.group.size)]
        dist.all_gather(gathered, tensor.contiguous())
        return gathered

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        """What torch.distributed's all_reduce makes of it (which knows no mean and no bool on CPUs)."""
        counted = tensor if self.dtype.is_floating_point else tensor.long()   # both wrap around alike
        result = counted.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, OPS.get(self.op, dist.ReduceOp.SUM))
        return (result / self.group.size if self.op == 'mean' else result).to(self.dtype)

    def check(self, result: torch.Tensor, expected: torch.Tensor) -> None:
        exact = not self.dtype.is_floating_point or self.op in ('max', 'min') or self.group.size <= 2
        if exact:
            assert torch.equal(result, expected), self.said
        else:   # N numbers below 10 are added: every partial sum may be rounded
            slack = 10 * self.group.size ** 2 * torch.finfo(self.dtype).eps
            torch.testing.assert_close(result, expected, rtol=0, atol=slack,
                                       msg=lambda m: f'{self.said}: {m}')


def reduces(case: Case) -> None:
    tensor = case.tensor()
    expected, same = case.reduced(tensor), tensor
    all_reduce(tensor, case.group, case.op)
    case.check(tensor, expected)
    for other in case.all_values(same):
        assert torch.equal(other, tensor), f'{case.said}: ranks differ'
    tensor = case.tensor()
    before, expected = tensor.clone(), case.reduced(tensor)
    reduce(tensor, case.group, case.root, case.op)
    case.check(tensor, expected) if case.group.rank == case.root else case.check(tensor, before)


def reduces_pieces(case: Case) -> None:
    pieces = case.pieces()
    before = [piece.clone() for piece in pieces]
    expected = [case.reduced(piece) for piece in pieces]
    case.check(reduce_scatter(pieces, case.group, case.op), expected[case.group.rank])
    assert all(map(torch.equal, pieces, before)), f'{case.said}: its input changed'


def moves(case: Case) -> None:
    group, tensor = case.group, case.tensor()
    values = case.all_values(tensor)
    broadcast(tensor, group, case.root)
    assert torch.equal(tensor, values[case.root]), case.said
    pieces = case.pieces()
    mine = pieces[group.rank].clone()
    for rank in range(group.size):
        dist.broadcast(expected := pieces[rank].contiguous(), rank)
        pieces[rank] = (expected, pieces[rank])
    expected, pieces = map(list, zip(*pieces))
    pieces[group.rank] = mine
    at_root = [torch.zeros_like(piece) for piece in pieces] if group.rank == case.root else None
    gather(mine, at_root, group, case.root)
    all_gather(pieces, group)
    assert all(map(torch.equal, pieces, expected)), case.said
    assert at_root is None or all(map(torch.equal, at_root, expected)), case.said
    received = torch.zeros_like(mine)
    scatter(received, at_root, group, case.root)
    assert torch.equal(received, expected[group.rank]), case.said


def transposes(case: Case) -> None:
    group = case.group
    sizes = [[case.draw.choice([0, 1, 3]) for _ in range(group.size)] for _ in range(group.size)]
    sent = [case.tensor((n,)) for n in sizes[group.rank]]
    received = [torch.zeros(row[group.rank], dtype=case.dtype) for row in sizes]
    all_to_all(received, sent, group)
    for source in range(group.size):
        for target in range(group.size):
            value = sent[target].contiguous() if source == group.rank else torch.empty(
                sizes[source][target], dtype=case.dtype)
            dist.broadcast(value, source)
            assert target != group.rank or torch.equal(received[source], value), case.said


def sends_what_the_formula_says(case: Case) -> None:
    group, n = case.group, case.group.size
    for elements in (case.draw.randrange(50) * n, case.draw.randrange(200)):
        tensor = torch.ones(elements, dtype=torch.float64)
        before = group.bytes_sent
        all_reduce(tensor, group)
        sizes = [len(piece) for piece in tensor.tensor_split(n)]
        own, right = sizes[group.rank], sizes[(group.rank + 1) % n]
        expected = 0 if n == 1 else 8 * (2 * elements - own - right)
        assert group.bytes_sent - before == expected, case.said
        assert elements % n or expected * n == 2 * (n - 1) * tensor.nbytes, case.said


CHECKS: list[Callable[[Case], None]] = [reduces, reduces_pieces, moves, transposes,
                                        sends_what_the_formula_says]


def _random_cases(seed: int, cases: int) -> int:
    group = Group(dist.new_group())
    for number in range(cases):
        for check in CHECKS:
            check(Case(seed + number, group))
    return group.bytes_sent


@pytest.mark.parametrize('ranks', [2, pytest.param(1, marks=pytest.mark.slow),
                                   pytest.param(3, marks=pytest.mark.slow),
                                   pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective_equals_torch_distributed_s_and_sends_what_its_formula_says(ranks: int) -> None:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    sent = launch(_random_cases, ranks, args=(seed, 40))
    assert all(sent) or ranks == 1


def _refusals() -> list[str]:
    group, said = Group(), []
    for tensor, op in ((torch.tensor([1, 2]), 'mean'), (torch.tensor([True]), 'sum'),
                       (torch.ones(2), 'avg')):
        with pytest.raises(ValueError) as caught:
            all_reduce(tensor, group, op)
        said.append(str(caught.value))
    return said


def test_an_operation_that_makes_no_sense_is_refused_with_the_remedy() -> None:
    integers, booleans, name = launch(_refusals, 1)[0]
    assert "take 'sum'" in integers and "'max' (any)" in booleans and "'mean'" in name


def _late(patience: float, folder: str) -> tuple[str, int]:
    """Nobody ends before all others have been told: else they are told of the end."""
    group = Group(dist.new_group(), time_limit=patience)
    told, told_all = Path(folder, str(group.rank)), lambda: len(list(Path(folder).iterdir())) == group.size - 1
    said, peer = '', -1
    if group.rank != 1:
        with pytest.raises(PeerError) as caught:
            all_reduce(torch.ones(4), group)
        said, peer = str(caught.value), caught.value.peer
        told.touch()
    until = time.monotonic() + 60
    while not told_all() and time.monotonic() < until:
        time.sleep(0.05)
    return said, peer


@pytest.mark.parametrize('ranks', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_late_rank_is_named_by_all_when_the_time_limit_passes(ranks: int, tmp_path: Path) -> None:
    told = launch(_late, ranks, args=(1.0, str(tmp_path)))
    said = told[2 % ranks][0]   # by the rank that waits for rank 1 itself
    assert f'rank {2 % ranks}, all_reduce: rank 1 did not take part within 1 s' in said
    assert {peer for rank, (_, peer) in enumerate(told) if rank != 1} == {1}


def _dying(victim: int, folder: str) -> None:
    """The victim dies in the middle of the traffic; the others write down what they are told."""
    group = Group(dist.new_group())
    all_reduce(torch.ones(3), group)
    if group.rank == victim:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        while True:
            all_reduce(torch.ones(3), group)
    except PeerError as error:
        with open(f'{folder}/{group.rank}', 'w') as file:
            file.write(f'{error.peer} {time.monotonic() - start} {error}')
    time.sleep(3)   # stay: nobody is to learn of it because this process ended, too


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1, 2, 3])
def test_when_a_rank_is_killed_every_other_rank_names_it_within_10_s(victim: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context('spawn')
    ranks = [context.Process(target=_by_hand, args=(rank, 4, str(tmp_path), victim))
             for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert ranks[victim].exitcode == -signal.SIGKILL
    for rank in {0, 1, 2, 3} - {victim}:
        named, seconds, said = (tmp_path / str(rank)).read_text().split(' ', 2)
        assert int(named) == victim and float(seconds) < 10, said


def _by_hand(rank: int, size: int, folder: str, victim: int) -> None:
    """launch would end the others as soon as the victim is dead."""
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    dist.init_process_group('gloo', rank=rank, world_size=size,
                            store=dist.FileStore(f'{folder}/store', size))
    _dying(victim, folder)


def _odd() -> tuple[list[str], list[complex]]:
    group, said = Group(dist.new_group(), time_limit=5.0), []
    pieces = [torch.zeros(1)] * group.size
    for root in (-2, group.size):
        for call in (lambda: broadcast(torch.zeros(1), group, root),
                     lambda: reduce(torch.zeros(1), group, root),
                     lambda: scatter(torch.zeros(1), pieces, group, root),
                     lambda: gather(torch.zeros(1), pieces, group, root)):
            with pytest.raises(ValueError) as caught:
                call()
            said.append(str(caught.value))
    conjugated = torch.tensor([1j, 2 + 1j, 3]).conj()
    all_reduce(conjugated, group)
    return said, conjugated.tolist()


def test_a_root_that_is_none_is_refused_and_a_conjugated_tensor_is_reduced() -> None:
    for said, numbers in launch(_odd, 2):
        assert len(said) == 8 and all('one of the ranks 0 to 1' in sentence for sentence in said)
        assert numbers == [-2j, 4 - 2j, 6]
