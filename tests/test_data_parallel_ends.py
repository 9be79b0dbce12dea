"""DataParallel beside the arithmetic: overlap, buckets, groups, and what if a rank is missing."""

import copy
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu.buckets import cut
from fewgpu.collectives import Group, PeerError
from fewgpu.data_parallel import DataParallel
from fewgpu.launch import launch
from tests.replicas import backward, equal, gradients, network, rows
from tests.test_data_parallel import equals_plain_on_all_rows_however_unequal


def _overlaps() -> list[str]:
    """In which order layers compute their gradients and buckets are reduced."""
    import fewgpu.reducer as reducer
    order: list[str] = []
    reduced = threading.Event()
    honest = reducer.all_reduce

    def noted(tensor: torch.Tensor, group: Group, op: str = 'sum') -> None:
        honest(tensor, group, op)
        order.append(f'reduced {tensor.numel()}')
        reduced.set()

    reducer.all_reduce = noted
    layers = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    model = DataParallel(layers, bucket_mb=16 * 4 / 2**20)   # a bucket a layer

    def slow(_: torch.Tensor) -> None:
        reduced.wait(60)   # by the time the backward goes on: in vain where nothing overlaps
        order.append('backward goes on')

    layers[1].register_forward_hook(lambda _, __, output: output.register_hook(slow) and None)
    model(torch.ones(2, 4)).sum().backward()
    return order


@pytest.fixture(scope='module')
def quick() -> list[tuple[list[str], list[str]]]:
    """What two ranks found that were started once; one law for those who run no slow tests."""
    def find() -> tuple[list[str], list[str]]:
        equals_plain_on_all_rows_however_unequal(7)
        return _overlaps(), _refused()

    return launch(find, 2)


def test_a_bucket_is_reduced_while_the_backward_goes_on(quick: list) -> None:
    for order, _ in quick:
        last = ['reduced 16', 'reduced 16', 'reduced 3']   # and a bitmap
        assert order == ['reduced 16', 'backward goes on', *last]


def test_buckets_are_filled_in_order_up_to_their_size_with_one_dtype_each() -> None:
    sizes = [random.randint(0, 40) for _ in range(30)]
    tensors = [torch.empty(n, dtype=random.choice([torch.float32, torch.float64])) for n in sizes]
    buckets = cut(tensors, limit := 100 / 2**20)
    assert [index for bucket in buckets for index in bucket] == list(range(30))
    for bucket, following in zip(buckets, [*buckets[1:], None]):
        inside = [tensors[index] for index in bucket]
        assert len({tensor.dtype for tensor in inside}) == 1
        assert len(bucket) == 1 or sum(t.nbytes for t in inside) <= 100
        if following is not None and tensors[following[0]].dtype == inside[0].dtype:
            assert sum(t.nbytes for t in inside) + tensors[following[0]].nbytes > limit * 2**20


def _refused() -> list[str]:
    said = []
    named = nn.Sequential(OrderedDict([('ab'[dist.get_rank()], nn.Linear(2, 2))]))
    for module in (nn.Linear(2, 2 + dist.get_rank()), named, nn.Linear(2, 2).requires_grad_(False)):
        with pytest.raises(ValueError) as caught:
            DataParallel(module)
        said.append(str(caught.value))
    return said


def test_different_modules_and_modules_without_gradients_are_refused(quick: list) -> None:
    for _, (shapes, names, frozen) in quick:
        assert 'rank 0 [2, 2, 6, ' in shapes and 'rank 1 [2, 2, 9, ' in shapes
        assert 'rank 0 [2, 2, 6, ' in names and 'rank 1 [2, 2, 6, ' in names
        assert 'requires a gradient' in frozen


def _ends_earlier(folder: str, kill: bool) -> None:
    """Rank 1 does one backward, rank 0 goes on, and writes down what it is told."""
    model = DataParallel(network(1))
    for step in range(4):
        if dist.get_rank() == 1 and step == 1:
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        start = time.monotonic()
        try:
            backward(model, *rows(step, 3, dist.get_rank()))
        except PeerError as error:
            with open(f'{folder}/said', 'w') as file:
                file.write('\n'.join([f'{time.monotonic() - start}', str(error), *error.__notes__]))
            with pytest.raises(RuntimeError, match='start all ranks again'):
                model(torch.zeros(2, 5))
            return


def _by_hand(rank: int, folder: str, kill: bool) -> None:
    """launch would end the other rank itself."""
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    dist.init_process_group('gloo', rank=rank, world_size=2,
                            store=dist.FileStore(f'{folder}/store', 2))
    _ends_earlier(folder, kill)


@pytest.mark.slow
@pytest.mark.parametrize('kill', [True, False])
def test_a_rank_that_died_or_ended_earlier_is_named_within_10_s(kill: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context('spawn')
    ranks = [context.Process(target=_by_hand, args=(rank, str(tmp_path), kill))
             for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert ranks[0].exitcode == 0
    seconds, said, note = (tmp_path / 'said').read_text().split('\n')
    assert float(seconds) < 10 and 'rank 0' in said and 'rank 1 closed the connection' in said
    assert 'model.join()' in note


def _replicas_of_a_grid(seed: int) -> int:
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    column, row = dist.get_rank() % 2, dist.get_rank() // 2
    plain = network(seed + column)
    model = DataParallel(copy.deepcopy(plain), group=columns[column])
    both = zip(rows(seed, 3, 0), rows(seed, 2, 1))
    backward(plain, *(torch.cat(parts) for parts in both))
    backward(model, *rows(seed, 3 - row, row))
    equal(gradients(model), gradients(plain), f'seed {seed}, column {column}')
    return column


@pytest.mark.slow
def test_replicas_may_be_the_ranks_of_a_group() -> None:
    assert launch(_replicas_of_a_grid, 4, args=(random.randrange(10**6),)) == [0, 1, 0, 1]


def _late(told: str) -> str:
    """Rank 1 stays until rank 0 has been told: else it is told that rank 1 ended."""
    model, until = DataParallel(network(1)), time.monotonic() + 60
    model._group.time_limit = 1.0   # now that both are here
    if dist.get_rank() == 1:
        while not os.path.exists(told) and time.monotonic() < until:
            time.sleep(0.05)
        return ''
    with pytest.raises(PeerError) as caught:
        backward(model, *rows(0, 3, 0))
    Path(told).touch()
    return str(caught.value)


def test_a_rank_that_does_not_come_is_named_when_the_time_limit_passes(tmp_path: Path) -> None:
    assert 'rank 1 did not take part within 1 s' in launch(_late, 2, args=(str(tmp_path / 'told'),))[0]
