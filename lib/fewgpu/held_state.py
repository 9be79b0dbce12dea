"""What the stages of this process know: weights and what optimizers remember, under the plain model's names."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fewgpu.held import Held
from fewgpu.optimizer_state import load_named_state, named_state

if TYPE_CHECKING:
    from fewgpu.hybrid import Replicas


class HeldState:
    """The part of a Pipeline that is saved and loaded."""

    _held: Held
    module: nn.Sequential
    optimizers: dict[tuple[int, int], torch.optim.Optimizer]
    replicas: 'Replicas | None'
    _homes: dict[int, tuple[int, ...]]   # the rows that hold each stage
    _rows: list[int]                     # of this process

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of the stages of this process."""
        return self.module.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Of the stages of this process."""
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the own entries out of the plain model's state_dict, or any part of it that has
        them; raises as torch does if one is missing."""
        self._held.load_state_dict(state)

    def kept_elsewhere(self) -> set[str]:
        """The parameters of this process that a checkpoint has from the first process that holds them: those of
        replicas are the same. (Buffers are each replica's own.)"""
        firsts = [] if self.replicas and not self.replicas.is_first else [
            self._held.first_of(s) for s, rows in self._homes.items() if rows[0] in self._rows]
        return {name for name, _ in self.module.named_parameters(remove_duplicate=False)} - {
            name for layers in firsts for name, _ in layers.named_parameters(remove_duplicate=False)}

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """What the optimizers of this process remember: see fewgpu.optimizer_state."""
        return named_state(self._held.named_parameters(), self.optimizers.values())

    def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the own entries out of what `optimizer_state` gave, here or with another cut."""
        load_named_state(self._held.named_parameters(), self.optimizers.values(), state)

    def __reduce_ex__(self, protocol: int) -> Any:
        raise TypeError(f'a {type(self).__name__} is not copied or pickled: save its state_dict(), and make another')
