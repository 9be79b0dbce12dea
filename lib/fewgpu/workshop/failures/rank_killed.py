"""Do all processes live until the end?

A rank is killed (by SIGKILL, as the system does when memory runs out) in the middle of a step; the others wait for it.
"""

import os
import signal
from random import Random

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.pipeline import Pipeline
from fewgpu.workshop.failures import Outcome
from fewgpu.workshop.failures.pipelines import CHUNKS, LAYERS, PACE, mini_batch, stages, warm_up
from fewgpu.workshop.failures.ranks import leave, of_pipeline, on_ranks

RANKS, STEPS = 2, 3   # the rank dies in the last step
SIGN = ('one rank stops in the middle of its row, the others as soon as they need something from it; the error names '
        'the rank and how it ended')
WHAT = 'Rank {rank} was killed in {op} of step {step}, without a word; the others could only wait for it.'
CHANGE = ('Find out who killed it (the system\'s log: memory, a time limit of the batch system, a person), and start '
          'all ranks again from the latest checkpoint.')


class Trap(nn.Module):
    """The last layer of a stage, which does nothing but end its process, in the `when`-th forward or backward."""

    def __init__(self, kind: str, when: int) -> None:
        super().__init__()
        self._kind, self._left = kind, when + 1
        self.spring = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._kind == 'F':
            self._count()
        elif x.requires_grad:
            x.register_hook(self._count)
        return x

    def _count(self, _: torch.Tensor | None = None) -> None:
        self._left -= 1
        if not self._left:
            self.spring()


def run(random: Random, *, fault: bool = True) -> Outcome:
    victim, kind, chunk = random.randrange(RANKS), random.choice('FB'), random.randrange(1, CHUNKS)
    timeline, message = on_ranks(_train, RANKS, victim if fault else -1, kind, chunk)
    return Outcome(f'a pipeline of {RANKS} stages, one a process', timeline, message, {
        'rank': victim, 'op': f'{kind}{chunk}', 'step': STEPS})


def _train(folder: str, victim: int, kind: str, chunk: int) -> None:
    rank, trap = torch.distributed.get_rank(), Trap(kind, (STEPS - 1) * CHUNKS + chunk)
    model = stages(RANKS)
    model.insert(2 * LAYERS * (victim + 1), trap) if victim >= 0 else None
    balance = [2 * LAYERS + (stage == victim) for stage in range(RANKS)]
    pipe = Pipeline(model, balance, chunks=CHUNKS, devices=[Device('cpu', index=rank, pace=PACE)],
                    loss_fn=nn.functional.mse_loss, time_limit=60.0)

    def die() -> None:
        leave(folder, of_pipeline(pipe._spans))
        os.kill(os.getpid(), signal.SIGKILL)

    trap.spring = die
    x = mini_batch()
    try:
        warm_up(pipe, x)
        for _ in range(1, STEPS):
            pipe.step(x, x)
    finally:
        leave(folder, of_pipeline(pipe._spans))
