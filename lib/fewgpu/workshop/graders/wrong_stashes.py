"""Stashes of weights that go wrong in one way each: what a learner's is compared with."""

import torch

from fewgpu.workshop.graders.stashes import MakeStash


class _Right:
    """Every mistake below changes one method of it."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.newest, self.first, self.used = weights, weights, {}

    def forward(self, micro_batch: int) -> torch.Tensor:
        self.used[micro_batch] = self.newest
        return self.newest

    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.used.pop(micro_batch)

    def update(self, change: torch.Tensor) -> None:
        self.newest = self.newest + change


class _Newest(_Right):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.newest


class _InPlace(_Right):
    def update(self, change: torch.Tensor) -> None:
        self.newest += change


class _InPlaceBesideCopies(_InPlace):
    def forward(self, micro_batch: int) -> torch.Tensor:
        self.used[micro_batch] = self.newest.clone()
        return self.newest


class _OneSlot(_Right):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return [*self.used.values()][-1]


class _Queue(_Right):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.used.pop(min(self.used))


class _Stack(_Right):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.used.pop(max(self.used))


class _FreesEarly(_Right):
    """By version, and freed at the first backward that has used it; the next one finds none."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__(weights)
        self.number, self.versions = 0, {0: weights}

    def forward(self, micro_batch: int) -> torch.Tensor:
        self.used[micro_batch] = self.number
        return self.newest

    def backward(self, micro_batch: int) -> torch.Tensor:
        number = self.used.pop(micro_batch)
        return self.newest if number == self.number else self.versions.pop(number)

    def update(self, change: torch.Tensor) -> None:
        super().update(change)
        self.number += 1
        self.versions[self.number] = self.newest


class _FreesEarlyAlsoNewest(_FreesEarly):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.versions.pop(self.used.pop(micro_batch))

    def forward(self, micro_batch: int) -> torch.Tensor:
        super().forward(micro_batch)
        return self.versions[self.number]


class _FreesEarlyThenNewest(_FreesEarly):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.versions.pop(self.used.pop(micro_batch), self.newest)


class _FreesEarlyThenNothing(_FreesEarly):
    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.versions.pop(self.used.pop(micro_batch), None)


class _KeepsOnlyLast(_FreesEarly):
    """The newest and the one before it, whatever is on its way."""

    def update(self, change: torch.Tensor) -> None:
        self.first = self.newest
        super().update(change)

    def backward(self, micro_batch: int) -> torch.Tensor:
        return self.newest if self.used.pop(micro_batch) == self.number else self.first


class _NeverUpdated(_Right):
    def update(self, change: torch.Tensor) -> None:
        pass


class _ChangeForWeights(_Right):
    def update(self, change: torch.Tensor) -> None:
        self.newest = change


class _FromTheStart(_Right):
    def update(self, change: torch.Tensor) -> None:
        self.newest = self.first + change


class _Minus(_Right):
    def update(self, change: torch.Tensor) -> None:
        self.newest = self.newest - change


WRONG: list[tuple[str, MakeStash]] = [
    ('in-place', _InPlace), ('in-place', _InPlaceBesideCopies), ('newest-in-backward', _Newest),
    ('one-slot', _OneSlot), ('wrong-order', _Queue), ('wrong-order', _Stack), ('two-only', _KeepsOnlyLast),
    ('frees-early', _FreesEarly), ('frees-early', _FreesEarlyAlsoNewest), ('frees-early', _FreesEarlyThenNewest),
    ('frees-early', _FreesEarlyThenNothing), ('never-updated', _NeverUpdated),
    ('change-for-weights', _ChangeForWeights), ('from-the-start', _FromTheStart), ('subtracts', _Minus)]
"""By misconception."""
