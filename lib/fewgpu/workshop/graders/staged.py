"""What a stage of exercise 06 goes through: micro-batches in any order, tokens, and other stages beside it."""

from random import Random

import torch
from torch import nn

from fewgpu.workshop.graders.plays import MakeStage, Play

FLOATS = 'nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))'
TOKENS = 'nn.Sequential(nn.Embedding(7, 3), nn.Tanh(), nn.Linear(3, 2))'

DRAWS = 'nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))'


def play(order: str, random: Random, code: str = FLOATS, has_grads: bool = False) -> Play:
    """A case of micro-batches of 1, 2, 3, 1, 2 rows and so on; of batch norm's, each has four rows more."""
    seed = random.randrange(10**6)
    generator, inputs = torch.Generator().manual_seed(seed), []
    for rows in [1 + k % 3 + 4 * (code == DRAWS) for k in range(order.count('F'))]:
        inputs.append(torch.randint(7, (rows,), generator=generator) if code == TOKENS else
                      torch.randn(rows, 4, generator=generator, dtype=torch.float64))
    return Play(code, tuple(inputs), order, seed, has_grads=has_grads)


def orders(random: Random) -> list[Play]:
    """Of several micro-batches, smallest first: one after the other, GPipe's, 1F1B's, two steps, and random ones."""
    fixed = ['F0 B0 F1 B1', 'F0 F1 B1 B0', 'F0 F1 B0 B1', 'F0 F1 F2 B0 B2 B1', 'F1 F0 B1 B0', 'F0 F1 B0 F2 B1 F3 B2 B3',
             'F0 F1 B1 B0 F0 F1 B1 B0']
    return [*(play(order, random) for order in fixed),
            *(play(_shuffled(random), random, code, has_grads=True) for code in (FLOATS, TOKENS, FLOATS))]


def _shuffled(random: Random) -> str:
    waiting, on_their_way, operations = list(range(5)), [], []
    random.shuffle(waiting)
    while waiting or on_their_way:
        if waiting and (not on_their_way or random.random() < 0.6):
            on_their_way.append(waiting.pop())
            operations.append(f'F{on_their_way[-1]}')
        else:
            operations.append(f'B{on_their_way.pop(random.randrange(len(on_their_way)))}')
    return ' '.join(operations)


class Crowd:
    """Several stages that are made one after the other and used in turn, of which the first is looked at."""

    def __init__(self, make: MakeStage, layer: nn.Module) -> None:
        self._stages = [make(layer), make(nn.Identity()), make(nn.Identity())]

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return [stage.forward(i, x) for stage in self._stages][0]

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        return self._stages[0].backward(i, gradient)
