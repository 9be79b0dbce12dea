"""Wrong stages, each under the misconception of exercise 06 that leads to it."""

import torch
from torch import nn

from fewgpu.workshop.graders.mistaken import mistaken
from fewgpu.workshop.graders.plays import MakeStage, Plain


class _ClearsInForward(Plain):
    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        self.layer.zero_grad()
        return super().forward(i, x)


class _ClearsAtFirst(Plain):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        layer.zero_grad()


class _OneSlot(Plain):
    """Whatever the number, there is one place."""

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return super().forward(0, x)

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        kept = self.kept[0]
        answer = super().backward(0, gradient)
        self.kept[0] = kept
        return answer


class _OneSlotForInput(Plain):
    """Outputs are kept by number, and of the inputs the last."""

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(i, x)
        self.last = self.kept[i][0]
        return y

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        self.kept[i][1].backward(gradient)
        return self.last.grad


class _InTurn(Plain):
    """Micro-batches come back as they went, or the other way round."""

    place = 0

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.queue: list[int] = []
        self.number = 0

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        self.number += 1
        self.queue.append(self.number)
        return super().forward(self.number, x)

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        return super().backward(self.queue.pop(self.place), gradient)


class _LastInFirstOut(_InTurn):
    place = -1


class _Listed(_InTurn):
    """Micro-batch i is taken for the i-th that came."""

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        x, y = self.kept[self.queue[i]]
        y.backward(gradient)
        return x.grad


class _ClearsOthers(Plain):
    """Of the micro-batches that are on their way, all are forgotten when one returns."""

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        answer = super().backward(i, gradient)
        self.kept.clear()
        return answer


class _OnlyFirstClears(Plain):
    """As above, but by micro-batch 0 alone: whoever thinks that it returns last."""

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        answer = super().backward(i, gradient)
        if i == 0:
            self.kept.clear()
        return answer


WRONG_STAGES: list[tuple[str, MakeStage]] = [
    ('gradient-ignored', mistaken('gradient-ignored')),
    ('no-leaf', mistaken('input-forgotten, no leaf')),
    ('only-inputs', mistaken('parameters-forgotten')),
    ('handed-on', mistaken('gradient-passed-on')),
    ('zero-between', mistaken('not-accumulated')),
    ('zero-between', _ClearsInForward),
    ('cleared', _ClearsAtFirst),
    ('one-slot', _OneSlot),
    ('one-slot', _OneSlotForInput),
    ('others-cleared', _ClearsOthers),
    ('others-cleared', _OnlyFirstClears),
    ('own-order', _InTurn),
    ('own-order', _LastInFirstOut),
    ('own-order', _Listed),
]
