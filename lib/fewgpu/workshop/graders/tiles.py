"""For the grader of exercise 14: linear layers in tiles, and the truth about them."""

from dataclasses import dataclass
from random import Random

import torch

from fewgpu.workshop.practice.disk import Disk

Tensor = torch.Tensor


@dataclass(frozen=True)
class Layer:
    """A linear layer in tiles of so many rows; `count` rows of x."""

    rows: tuple[int, ...]
    inputs: int
    count: int
    seed: int = 0

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W, b, x and the gradient of the output, small whole numbers other than 0."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = [(sum(self.rows), self.inputs), (sum(self.rows),), (self.count, self.inputs),
                  (self.count, sum(self.rows))]
        w, b, x, gradient = (torch.randint(1, 10, shape, generator=generator).double() for shape in shapes)
        return w, b, x, gradient

    def disk(self, room: float = 1) -> Disk:
        w, b, *_ = self.tensors()
        return Disk([*zip(w.split(list(self.rows)), b.split(list(self.rows)))], room=room)

    def __str__(self) -> str:
        return f'W of {sum(self.rows)} x {self.inputs}, rows of its tiles: {", ".join(map(str, self.rows))}'


def layers(random: Random) -> list[Layer]:
    """Smallest first."""
    fixed = [((1,), 1, 1), ((2,), 2, 3), ((1, 1), 2, 1), ((2, 2), 3, 2), ((2, 1), 3, 2), ((1, 2), 2, 3),
             ((3, 3, 2), 4, 3), ((2, 2, 2), 6, 6)]
    drawn = [(tuple(random.randrange(1, 6) for _ in range(tiles)), random.randrange(2, 6), random.randrange(2, 6))
             for tiles in (3, 4, 5)]
    return [Layer(*each, seed=k) for k, each in enumerate([*fixed, *drawn])]


def gradients(layer: Layer) -> list[tuple[Tensor, Tensor]]:
    """Those of weight and bias of every tile, from the plain layer's."""
    _, _, x, gradient = layer.tensors()
    rows = list(layer.rows)
    return [*zip((gradient.T @ x).split(rows), gradient.sum(dim=0).split(rows))]
