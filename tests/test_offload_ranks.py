"""On ranks, each with its share of the state and rows of its own, the result is that of the plain model."""

import copy
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu.device import Device, one_thread
from fewgpu.launch import launch
from fewgpu.offload import Offloaded
from fewgpu.rng import StepSeed, Stream
from fewgpu.offload import DiskStore, HostStore

MSE = nn.functional.mse_loss


def adam(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def network(seed: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(draw.randint(2, 5)):
        kind = draw.choice(['linear', 'two', 'dropout', 'norm', 'tanh', 'frozen'])
        layers.append({'linear': lambda: nn.Linear(5, 5, bias=draw.random() < 0.5), 'tanh': nn.Tanh,
                       'two': lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)),
                       'dropout': lambda: nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.3)),
                       'norm': lambda: nn.LayerNorm(5),
                       'frozen': lambda: nn.Linear(5, 5).requires_grad_(False)}[kind]())
    return nn.Sequential(*layers, nn.Linear(5, 3)).to(dtype)


def rows(seed: int, step: int, count: int, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * step + rank)
    return (torch.randn(count, 5, generator=generator, dtype=dtype),
            torch.randn(count, 3, generator=generator, dtype=dtype))


def train_plainly(seed: int, counts: list[int], steps: int, dtype: torch.dtype) -> tuple[nn.Module, list[float]]:
    """On the rows of all ranks, a micro-batch a rank."""
    model, losses = network(seed, dtype), []
    optimizer = adam([parameter for parameter in model.parameters() if parameter.requires_grad])
    torch.manual_seed(seed)
    with one_thread():
        for step in range(steps):
            streams, total = StepSeed(int(torch.randint(2**62, (), dtype=torch.int64))), 0.0
            for rank, count in ((rank, count) for rank, count in enumerate(counts) if count):
                value, target = rows(seed, step, count, rank, dtype)
                for k, layer in enumerate(model):
                    with Stream(streams, k, rank, torch.device('cpu')):
                        value = layer(value)
                loss = MSE(value, target) * (count / sum(counts))
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
    return model, losses


# Laws, each checked in every rank for one seed

def equals_plain_on_all_rows(seed: int) -> None:
    draw, size, rank = random.Random(seed), dist.get_world_size(), dist.get_rank()
    dtype = torch.float32 if size == 2 else torch.float64
    counts = [draw.randint(0, 5) for _ in range(size)]
    counts[draw.randrange(size)] = draw.randint(1, 5)   # a rank may have none, but not all of them
    plain, losses = train_plainly(seed, counts, 3, dtype)
    module = network(seed, dtype)
    if rank:
        with torch.no_grad():   # the ranks start as rank 0
            for parameter in module.parameters():
                parameter.add_(1.0)
    with (DiskStore() if draw.random() < 0.3 else HostStore()) as store:
        model = Offloaded(module, optimizer=adam, loss_fn=MSE, device=Device('cpu'), store=store,
                          depth=draw.randint(0, 4), reading=draw.choice(['slices', 'broadcast']))
        torch.manual_seed(seed)
        ours = [model.step(*rows(seed, step, counts[rank], rank, dtype)).item() for step in range(3)]
        found, expected = model.state_dict(), plain.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        if size == 2:   # a + b = b + a
            assert torch.equal(found[name], value), f'seed {seed}: {name}'
        else:
            torch.testing.assert_close(found[name], value, msg=lambda m: f'seed {seed}, {name}: {m}')
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(losses), msg=lambda m: f'seed {seed}: {m}')


def every_rank_reads_its_share(seed: int) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
    for reading in ('slices', 'broadcast'):
        store = HostStore()
        model = Offloaded(copy.deepcopy(module), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), loss_fn=MSE,
                          device=Device('cpu'), store=store, reading=reading)
        before = store.bytes_read
        model.step(torch.ones(2, 64), torch.ones(2, 64))
        layers = 3 + 2   # forward, and backward of all but the last
        share = 1 / size if reading == 'slices' else float(rank == 0)
        assert store.bytes_read - before == layers * share * 64 * 64 * 4, reading


def averages_batch_norm(seed: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    module = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    alone = [copy.deepcopy(module) for _ in range(size)]
    model = Offloaded(module, optimizer=adam, loss_fn=MSE, device=Device('cpu'))
    counts = [2 + other for other in range(size)]
    model.step(*rows(seed, 0, counts[rank], rank, torch.float32))
    means = []
    for other, plain in enumerate(alone):
        plain(rows(seed, 0, counts[other], other, torch.float32)[0])
        means.append(plain[0].running_mean * (counts[other] / sum(counts)))
    torch.testing.assert_close(model.state_dict()['0.running_mean'], sum(means))


def nothing_to_train_on_is_refused(seed: int) -> None:
    model = Offloaded(network(seed), optimizer=adam, loss_fn=MSE, device=Device('cpu'))
    with pytest.raises(ValueError, match='at least one row'):
        model.step(*rows(seed, 0, 0, dist.get_rank(), torch.float32))
    with pytest.raises(ValueError, match='different modules'):
        Offloaded(nn.Sequential(nn.Linear(5, 3 + dist.get_rank())), optimizer=adam, loss_fn=MSE, device=Device('cpu'))


def goes_back_to_the_step_that_all_have(folder: str) -> None:
    """A rank that was ended before it could say that a step counts, while others could."""
    rank = dist.get_rank()
    x, y = rows(3, 0, 2, rank, torch.float32)

    def opened(store: DiskStore) -> Offloaded:
        return Offloaded(network(3), optimizer=adam, loss_fn=MSE, device=Device('cpu'), store=store)

    with DiskStore(Path(folder) / str(rank)) as store:
        model = opened(store)
        model.step(x, y)
        after_one = model.state_dict()
        remove, store.remove = store.remove, lambda name: None   # they were killed before they removed what was old
        kept = (store.folder / 'manifest.tensors').read_bytes()
        torch.manual_seed(7)
        model.step(x, y)
        after_two = model.state_dict()
        store.remove = remove
        if rank == 0:
            (store.folder / 'manifest.tensors').write_bytes(kept)
    with DiskStore(Path(folder) / str(rank)) as store:
        model = opened(store)
        assert model.steps == 1
        assert all(torch.equal(value, after_one[name]) for name, value in model.state_dict().items())
        torch.manual_seed(7)
        model.step(x, y)
        assert all(torch.equal(value, after_two[name]) for name, value in model.state_dict().items())


def check(laws: list[Callable[[int], None]], seeds: list[int], folder: str) -> None:
    for seed in seeds:
        for law in laws:
            law(seed)
    goes_back_to_the_step_that_all_have(folder)


def test_two_ranks():
    seeds = [random.randrange(10**6) for _ in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        laws = [equals_plain_on_all_rows, every_rank_reads_its_share, averages_batch_norm, nothing_to_train_on_is_refused]
        launch(check, 2, args=(laws, seeds, folder), time_limit=300)


@pytest.mark.slow
def test_three_ranks():
    seeds = [random.randrange(10**6) for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        launch(check, 3, args=([equals_plain_on_all_rows, averages_batch_norm], seeds, folder), time_limit=300)
