"""Small GPTs for a demonstration of spilling: trained one by one, cut over all devices, or shared by them."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from fewgpu import Pipeline
from fewgpu.device import Device, get_devices
from fewgpu.models import gpt, next_token_loss
from fewgpu.schedule import gpipe, with_recompute
from fewgpu.simulate import Costs, simulate
from fewgpu.spill import Spilled
from fewgpu.spill.sharp import Job, sharp

PACE = 0.2           # of a device: a fifth of a core, so that all devices and the host find their time on two
STEPS = 1            # mini-batches of each model that trains
MODELS, DEVICES = 6, 4
VOCABULARY = 64


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return gpt(6, 128, 4, vocabulary=VOCABULARY)


def even_balance(shards: int) -> list[int]:
    """Of the 9 layers of `network`."""
    return [9 // shards + (s < 9 % shards) for s in range(shards)]


def spilled(seed: int, cuts: list[int], devices: Sequence[Device], *, prefetch: bool = True) -> Spilled:
    return Spilled(network(seed), cuts, device=devices[0], loss_fn=next_token_loss, optimizer=torch.optim.Adam,
                   prefetch=prefetch)


def tokens(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    return text[:, :-1], text[:, 1:]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [tokens(4, 32) for _ in range(STEPS)]


def linked(count: int) -> list[Device]:
    return get_devices(count, kind='cpu', pace=PACE, bandwidth=2e8)


def one_by_one() -> Callable[[], object]:
    models = [spilled(seed, even_balance(3), linked(1)) for seed in range(MODELS)]
    return lambda: [model.step(x, y) for model in models for x, y in batches()]


def pipelined(chunks: int) -> Callable[[], object]:
    """What trains returns the share of time in which the devices idle."""
    pipes = [Pipeline(network(seed), even_balance(DEVICES), schedule='gpipe', chunks=chunks, devices=linked(DEVICES),
                      loss_fn=next_token_loss, optimizer=torch.optim.Adam, checkpoint='never')
             for seed in range(MODELS)]
    def train() -> float:
        for pipe in pipes:
            for x, y in batches():
                pipe.step(x, y)
        return pipes[-1].trace.bubble
    return train


def shared() -> Callable[[], object]:
    jobs = [Job(spilled(seed, even_balance(3), linked(1)), batches()) for seed in range(MODELS)]
    return lambda: sharp(jobs, linked(DEVICES))


def virtual_pipeline(stages: int, chunks: int) -> float:
    """The makespan of one mini-batch in the plain pipeline, with what recompute it takes to fit."""
    schedule = gpipe(stages, chunks)
    if chunks > 1:
        schedule = with_recompute(schedule, 'except_last')
    return simulate(schedule, Costs(F=1 / chunks, B=2 / chunks)).makespan


def seconds_of(call: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found
