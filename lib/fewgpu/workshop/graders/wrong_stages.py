"""Wrong stages, each under the misconception of exercise 06 that leads to it."""

import torch

from fewgpu.workshop.graders.staged import MakeStage, RightStage


class _IgnoresGradient(RightStage):
    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        return super().backward(i, torch.ones_like(gradient))


class _NoLeaf(RightStage):
    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


class _OnlyInputs(RightStage):
    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        x, y = self.kept.pop(i)
        return torch.autograd.grad(y, x, gradient)[0] if x.requires_grad else None


class _OnlyParameters(RightStage):
    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        super().backward(i, gradient)
        return gradient


class _ClearsBefore(RightStage):
    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        self.module.zero_grad()
        return super().backward(i, gradient)


class _ClearsInForward(RightStage):
    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        self.module.zero_grad()
        return super().forward(i, x)


class _ClearsAtFirst(RightStage):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        module.zero_grad()


class _OneSlot(RightStage):
    """Whatever the number, there is one place."""

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return super().forward(0, x)

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        kept = self.kept[0]
        answer = super().backward(0, gradient)
        self.kept[0] = kept
        return answer


class _OneSlotForInput(RightStage):
    """Outputs are kept by number, and of the inputs the last."""

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        self.kept[i][1].backward(gradient)
        return self.last.grad

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().enter(x)
        return self.last


class _InTurn(RightStage):
    """Micro-batches come back as they went, or the other way round."""

    place = 0

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
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


WRONG_STAGES: list[tuple[str, MakeStage]] = [
    ('gradient-ignored', _IgnoresGradient),
    ('no-leaf', _NoLeaf),
    ('only-inputs', _OnlyInputs),
    ('handed-on', _OnlyParameters),
    ('zero-between', _ClearsBefore),
    ('zero-between', _ClearsInForward),
    ('cleared', _ClearsAtFirst),
    ('one-slot', _OneSlot),
    ('one-slot', _OneSlotForInput),
    ('own-order', _InTurn),
    ('own-order', _LastInFirstOut),
    ('own-order', _Listed),
]
