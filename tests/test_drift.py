"""Replicas that are no longer the same: the parameter and the ranks are named, whichever bit it is."""

import random

import pytest
import torch
from torch import nn

from fewgpu.collectives import Group, all_reduce
from fewgpu.drift import Drift, Drifted, checksum
from fewgpu.launch import launch


def _model(draw: random.Random) -> nn.Module:
    torch.manual_seed(draw.randrange(1000))
    widths = [draw.randint(1, 9) for _ in range(draw.randint(2, 5))]
    model = nn.Sequential(*map(nn.Linear, widths, widths[1:]))
    return model.to(draw.choice([torch.float32, torch.float64, torch.bfloat16]))


def _drifts(seed: int, cases: int) -> list[tuple[int, str, str, str]]:
    """In each case one rank changes the last bit of one number of one parameter."""
    group, told = Group(), []
    for case in range(cases):
        draw = random.Random(f'{seed} {case}')
        model, every = _model(draw), draw.randint(1, 4)
        names = [name for name, _ in model.named_parameters()]
        rank, name = draw.randrange(group.size), draw.choice(names)
        drift, before, after = Drift(model, group, every=every), '', ''
        sent = group.bytes_sent
        for _ in range(every):
            drift.look()
        assert group.bytes_sent - sent == 8 * (group.size - 1)   # one number, to each other rank
        if group.rank == rank:
            with torch.no_grad():
                bits = model.get_parameter(name).view(-1).view(torch.uint8)
                bits[draw.randrange(len(bits))] ^= 1
        try:
            for step in range(every):
                before = f'{step + 1} of {every}'
                drift.look()
        except Drifted as error:
            after = str(error)
        assert before == f'{every} of {every}'
        told.append((rank, name, f'{2 * every} steps', after))
    return told


@pytest.mark.parametrize('ranks', [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_single_bit_is_found_at_the_next_comparison_and_named_on_every_rank(ranks: int) -> None:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    for case in zip(*launch(_drifts, ranks, args=(seed, 12))):
        assert len({*case}) == 1
        rank, name, steps, said = case[0]
        assert f'the first is {name!r}' in said and f'seen after {steps}' in said and said.count(': 1 of ') == 1
        others = ' and '.join(str(other) for other in range(ranks) if other != rank)
        who = f'rank {rank} has other numbers than ranks {others}' if ranks > 2 else 'no two of ranks 0 to 1'
        assert who in said


def _trains(seed: int) -> list[int]:
    """Averaged gradients, different rows: the same bits for ever. The checksums at the end."""
    draw, group = random.Random(seed), Group()
    model = _model(draw).float()
    drift = Drift(model, group, every=2)
    rows = torch.Generator().manual_seed(group.rank)
    for _ in range(6):
        model(torch.randn(5, model[0].in_features, generator=rows)).square().mean().backward()
        for parameter in model.parameters():
            all_reduce(parameter.grad, group, 'mean')
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
        drift.look()
    return [checksum(parameter.detach()) for parameter in model.parameters()]


def test_replicas_that_average_their_gradients_never_drift() -> None:
    first, second = launch(_trains, 2, args=(random.randrange(10**6),))   # nobody raised Drifted
    assert first == second


def test_checksums_are_of_bits_whatever_the_strides() -> None:
    square = torch.randn(4, 4)
    assert checksum(square.t()) == checksum(square.t().contiguous()) != checksum(square)
    assert checksum(torch.tensor([float('nan')])) == checksum(torch.tensor([float('nan')]))
    assert checksum(torch.tensor([0.0])) != checksum(torch.tensor([-0.0]))
    assert checksum(torch.tensor(1.0)) == checksum(torch.tensor([1.0])) and checksum(torch.zeros(0)) == 0


@pytest.mark.parametrize('every', [0, -1, 1.5, True, None])
def test_steps_between_comparisons_are_a_whole_number(every: object) -> None:
    with pytest.raises(ValueError, match='compared every 1, 2, 3'):
        Drift(nn.Linear(1, 1), None, every=every)
