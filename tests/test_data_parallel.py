"""DataParallel equals the plain model on all ranks' rows, and DDP where that does the same."""

import copy
import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fewgpu.buckets import average_gradients, average_one_by_one
from fewgpu.collectives import Group
from fewgpu.data_parallel import DataParallel
from fewgpu.gpipe import GPipe
from fewgpu.launch import launch
from tests.replicas import backward, equal, gradients, network, rows


class Columns(nn.Sequential):
    """Takes samples in columns, so that its rows must be told."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.T)


# Laws, each checked in every rank for one seed

def equals_plain_on_all_rows_however_unequal(seed: int) -> None:
    draw, size = random.Random(seed), dist.get_world_size()
    counts = [draw.randint(1, 6), *(draw.randint(0, 6) for _ in range(1, size))]
    plain, columns = network(seed), draw.random() < 0.5
    model = DataParallel(Columns(copy.deepcopy(plain)) if columns else copy.deepcopy(plain),
                         bucket_mb=draw.choice([0.0001, 0.002, 25]))
    model.rows = counts[dist.get_rank()] if columns else None
    for step in range(2):   # the second from gradients that are views already, or from none
        everything = [rows(seed + step, count, rank) for rank, count in enumerate(counts)]
        backward(plain, *(torch.cat(parts) for parts in zip(*everything)))
        x, y = everything[dist.get_rank()]
        backward(model, x.T if columns else x, y)
        equal(gradients(model), gradients(plain), f'seed {seed}, rows {counts}')
        if draw.random() < 0.7:
            plain.zero_grad(set_to_none := draw.random() < 0.5)
            model.zero_grad(set_to_none)


def equals_ddp_over_several_backwards(seed: int) -> None:
    draw = random.Random(seed)
    module = network(seed)
    ours = DataParallel(copy.deepcopy(module), bucket_mb=0.001)
    ddp = DistributedDataParallel(copy.deepcopy(module))
    for step in range(4):
        batch, sync = rows(seed + step, 4, dist.get_rank()), draw.random() < 0.6
        for model in (ours, ddp):
            if sync:
                backward(model, *batch)
            else:
                with model.no_sync():
                    backward(model, *batch)
        equal(gradients(ours), gradients(ddp), f'seed {seed}, step {step}, sync {sync}')


def parts_of_a_mini_batch_weigh_as_the_whole(seed: int) -> None:
    draw = random.Random(seed)
    parts = [[draw.randint(1, 4) for _ in range(3)] for _ in range(dist.get_world_size())]
    plain = network(seed)
    model = DataParallel(copy.deepcopy(plain))
    everything = [rows(seed, sum(sizes), rank) for rank, sizes in enumerate(parts)]
    backward(plain, *(torch.cat(tensors) for tensors in zip(*everything)))
    mine, sizes = everything[dist.get_rank()], parts[dist.get_rank()]
    *first, last = zip(*(tensor.split(sizes) for tensor in mine))
    with model.no_sync():
        for part in first:
            backward(model, *part, len(part[0]) / sum(sizes))
    backward(model, *last, len(last[0]) / sum(sizes))
    equal(gradients(model), gradients(plain), f'seed {seed}, parts {parts}')


def weighs_a_sum_as_a_mean_and_gives_the_sum_as_documented(seed: int) -> None:
    draw, rank = random.Random(seed), dist.get_rank()
    counts = [draw.randint(1, 5) for _ in range(dist.get_world_size())]
    plain, everything = network(seed), [rows(seed, count, r) for r, count in enumerate(counts)]
    model, sums = DataParallel(copy.deepcopy(plain)), partial(F.mse_loss, reduction='sum')
    x, y = everything[rank]
    for count, (a, b) in zip(counts, everything):
        (sums(plain(a), b) * count / sum(counts)).backward()
    sums(model(x), y).backward()
    equal(gradients(model), gradients(plain), f'seed {seed}, rows {counts}, as it is')
    plain.zero_grad()
    model.zero_grad()
    sums(plain(torch.cat([a for a, _ in everything])), torch.cat([b for _, b in everything])).backward()
    (sums(model(x), y) / len(x)).backward()
    mended = [gradient * sum(counts) for gradient in gradients(model)]
    equal(mended, gradients(plain), f'seed {seed}, rows {counts}, as documented')


class Branches(nn.Module):
    """Which branches a rank uses is its own business."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branches = nn.Linear(5, 3), nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor, use: list[int]) -> dict[str, torch.Tensor]:
        x = self.stem(x)
        for branch in use:
            x = torch.tanh(self.branches[branch](x))
        return {'out': x}


def counts_what_a_rank_does_not_use_as_zeros(seed: int) -> None:
    draw = random.Random(seed)
    uses = [[b for b in range(4) if draw.random() < 0.4] for _ in range(dist.get_world_size())]
    torch.manual_seed(seed)
    plain = Branches().double()
    model = DataParallel(copy.deepcopy(plain), bucket_mb=0.0001)
    for rank, use in enumerate(uses):
        x, y = rows(seed, 3, rank)
        (F.mse_loss(plain(x, use)['out'], y) / len(uses)).backward()
    x, y = rows(seed, 3, dist.get_rank())
    F.mse_loss(model(x, use=uses[dist.get_rank()])['out'], y).backward()
    equal(gradients(model), gradients(plain), f'seed {seed}, uses {uses}')


def averages_the_statistics_of_batch_norm(seed: int) -> None:
    counts = [random.Random(seed).randint(2, 6) + rank for rank in range(dist.get_world_size())]
    alone = [network(seed, norm=True) for _ in counts]
    model = DataParallel(network(seed, norm=True))
    outputs = [model(rows(seed + k, counts[dist.get_rank()], dist.get_rank())[0]) for k in range(2)]
    for output in outputs:   # two graphs at once: the statistics change between their backwards
        output.sum().backward()
    for rank, module in enumerate(alone):
        for k in range(2):
            module(rows(seed + k, counts[rank], rank)[0])
    for name, buffer in model.named_buffers():
        values = [module.get_buffer(name) for module in alone]
        expected = (sum(n * value for n, value in zip(counts, values)) / sum(counts)
                    if buffer.is_floating_point() else values[dist.get_rank()])
        torch.testing.assert_close(buffer, expected, msg=lambda m: f'seed {seed}, {name}: {m}')


def starts_as_rank_0_under_the_plain_names(seed: int) -> None:
    expected = network(seed, norm=True).state_dict()
    other = network(seed, norm=True)
    with torch.no_grad():
        for tensor in [*other.parameters(), *other.buffers()]:
            tensor += dist.get_rank()   # rank 0's are as they were
    model = DataParallel(other)
    assert list(model.state_dict()) == list(expected)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in expected.items())
    nn.Sequential(model).load_state_dict({f'0.{name}': value + 1 for name, value in expected.items()})
    assert torch.equal(other.state_dict()['0.weight'], expected['0.weight'] + 1)
    assert not model.eval().module.training and not other[0].training


def recomputes_and_pipelines_inside(seed: int) -> None:
    plain = network(seed)
    x, y = rows(seed, 4, dist.get_rank())
    reference = DistributedDataParallel(copy.deepcopy(plain))
    backward(reference, x, y)
    pipe = DataParallel(GPipe(copy.deepcopy(plain), [1, len(plain) - 1], devices=['cpu'] * 2, chunks=2,
                              checkpoint='always'))
    backward(pipe, x, y)
    equal(gradients(pipe), gradients(reference), f'seed {seed}, GPipe')
    for reentrant in (False, True):
        model = DataParallel(Checkpointed(copy.deepcopy(plain), reentrant))
        backward(model, x.clone().requires_grad_(), y)
        equal(gradients(model), gradients(reference), f'seed {seed}, layers, reentrant {reentrant}')
        model = DataParallel(copy.deepcopy(plain))
        F.mse_loss(checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant), y).backward()
        equal(gradients(model), gradients(reference), f'seed {seed}, all of it, reentrant {reentrant}')


class Checkpointed(nn.Module):
    """Every layer by torch's checkpoint."""

    def __init__(self, layers: nn.Sequential, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = layers, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def follows_those_with_more_mini_batches(seed: int) -> None:
    counts = [random.Random(seed + rank).randint(0, 4) for rank in range(dist.get_world_size())]
    plain = network(seed)
    model = DataParallel(copy.deepcopy(plain))
    steps = [torch.optim.SGD(module.parameters(), 0.1) for module in (plain, model)]
    for k in range(max(counts)):
        parts = [rows(seed + k, 1 + rank, rank) for rank, count in enumerate(counts) if k < count]
        plain.zero_grad()
        backward(plain, *(torch.cat(tensors) for tensors in zip(*parts)))
        steps[0].step()
    with model.join():
        for k in range(counts[dist.get_rank()]):
            model.zero_grad()
            backward(model, *rows(seed + k, 1 + dist.get_rank(), dist.get_rank()))
            steps[1].step()
    equal(list(model.parameters()), list(plain.parameters()), f'seed {seed}, mini-batches {counts}')


def averages_gradients_after_the_backward(seed: int) -> None:
    draw, size = random.Random(seed), dist.get_world_size()
    shares = [draw.random() for _ in range(size)]
    share = [s / sum(shares) for s in shares]
    group = Group(dist.new_group())
    modules = [network(seed) for _ in range(size)]
    for rank, module in enumerate(modules):
        backward(module, *rows(seed, 3, rank))
        if rank == 1:
            module[0].weight.grad = None
    expected = [sum(s * (0 if g is None else g) for s, g in zip(share, column))
                for column in zip(*map(gradients, modules))]
    mine = modules[dist.get_rank()]
    averaged = average_gradients({parameter: parameter.grad for parameter in mine.parameters()}, group,
                                 share[dist.get_rank()], bucket_mb=draw.choice([0.0005, 25]))
    equal([*averaged.values()], expected, f'seed {seed}')
    naive = network(seed)
    backward(naive, *rows(seed, 3, dist.get_rank()))
    ddp = DistributedDataParallel(network(seed))
    backward(ddp, *rows(seed, 3, dist.get_rank()))
    average_one_by_one(naive.parameters(), group)
    equal(gradients(naive), gradients(ddp), f'seed {seed}, naive')


LAWS: list[Callable[[int], None]] = [
    equals_plain_on_all_rows_however_unequal, equals_ddp_over_several_backwards,
    parts_of_a_mini_batch_weigh_as_the_whole, weighs_a_sum_as_a_mean_and_gives_the_sum_as_documented,
    counts_what_a_rank_does_not_use_as_zeros,
    averages_the_statistics_of_batch_norm, starts_as_rank_0_under_the_plain_names,
    recomputes_and_pipelines_inside, follows_those_with_more_mini_batches,
    averages_gradients_after_the_backward]


def _check_laws(seed: int, cases: int) -> None:
    for number in range(cases):
        for law in LAWS:
            law(seed + number)


@pytest.mark.slow   # the processes and the first use of autograd, DDP and checkpoint take most of it
@pytest.mark.parametrize('ranks', [1, 2, 3])
def test_every_law_of_data_parallelism_holds_over_random_networks(ranks: int) -> None:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    launch(_check_laws, ranks, args=(seed, 6))
