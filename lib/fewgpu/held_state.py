"""What the stages of this process know: weights and what optimizers remember, under the plain model's names."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fewgpu.held import Held
from fewgpu.optimizer_state import load_named_state, named_state


class HeldState:
    """The part of a Pipeline that is saved and loaded."""

    _held: Held
    module: nn.Sequential
    optimizers: dict[tuple[int, int], torch.optim.Optimizer]

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

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """What the optimizers of this process remember: see fewgpu.optimizer_state."""
        return named_state(self._held.named_parameters(), self.optimizers.values())

    def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the own entries out of what `optimizer_state` gave, here or with another cut."""
        load_named_state(self._held.named_parameters(), self.optimizers.values(), state)

    def __reduce_ex__(self, protocol: int) -> Any:
        raise TypeError(f'a {type(self).__name__} is not copied or pickled: save its state_dict(), and make another')
