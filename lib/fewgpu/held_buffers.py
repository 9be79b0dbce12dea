"""Buffers of a stage that lives on several devices: each replica has its own, and follows what somebody changes."""

from collections.abc import Sequence

import torch
from torch import nn

from fewgpu.recompute import buffer_slots

Copies = Sequence[tuple[nn.Module, torch.device]]


class Followed:
    """The buffers of a stage's first replica, which its copies follow where they are changed between steps.

    A step changes the buffers of each replica by the micro-batches that it sees, and that is no change here:
    call `note` after each.
    """

    def __init__(self, first: nn.Module, copies: Copies) -> None:
        """`copies` have the same layers, each on its device."""
        self._first, self._copies = first, copies
        self.note()

    def note(self) -> None:
        """What the buffers are now is what the copies need not follow."""
        self._noted = [_seen(container[key]) for container, key in buffer_slots(self._first)]

    @torch.no_grad()
    def follow(self) -> None:
        """Let the copies take the buffers that have been changed since the last note."""
        slots = buffer_slots(self._first)
        changed = [k for k, (container, key) in enumerate(slots)
                   if k >= len(self._noted) or not _same(_seen(container[key]), self._noted[k])]
        for copy, device in self._copies:
            places = buffer_slots(copy)
            for k in changed:
                (container, key), (place, name) = slots[k], places[k]
                value = container[key]
                place[name] = None if value is None else value.detach().to(device, copy=True)


def _seen(buffer: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """The tensor, and how often it has been changed (which nobody counts for a tensor of inference mode)."""
    return buffer, 0 if buffer is None or buffer.is_inference() else buffer._version


def _same(one: tuple[torch.Tensor | None, int], other: tuple[torch.Tensor | None, int]) -> bool:
    return one[0] is other[0] and one[1] == other[1]
