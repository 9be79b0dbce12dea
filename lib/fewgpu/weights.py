"""Which weights an operation uses: versions of a stage's parameters.

A *shadow* is a leaf that shares a parameter's storage. Forwards run on shadows, and their gradients
gather there, apart from the caller's graph and from those of other versions.

An update writes into the parameters. If an older version is still needed, because a forward has
run with it whose backward is to come, the parameters move to storage of their own just before, and
the shadows keep the old one: there are as many copies as versions alive, and none in a schedule
that flushes.

    before    parameter ──┐                  after     parameter ──── updated copy
                          ├── storage
              shadow ─────┘                            shadow ─────── storage, as it was

A schedule that keeps no older version needs nothing more: the update writes into the storage that a
stashed graph has saved, and the backward meets the newest weights. So it is wherever a layer's backward
reads them, to carry a gradient to its input: in linear layers, convolutions, most norms. It is not where
a layer has made a copy (instance norm, weight norm): autocast's copies in lower precision stay as they were
in the forward, and only a recompute makes them anew (so under autocast it is asked for: `verify_meets_newest`).
"""

import contextlib

import torch
from torch import nn

from fewgpu.recompute import Swap, parameter_slots

Gradients = dict[nn.Parameter, torch.Tensor | None]


class Weights:
    """One version of a stage's parameters: their shadows."""

    def __init__(self, module: nn.Module, *, gradients: bool, updated: bool) -> None:
        """Without `gradients` the module simply keeps its parameters. If they are `updated` while
        older versions are in use, autograd must not take that for a change of those (`detach`
        shares the counter of changes, `data` does not)."""
        slots = parameter_slots(module) if gradients else []
        self.shadows: dict[nn.Parameter, torch.Tensor] = {}
        for _, _, parameter in slots:
            if parameter not in self.shadows:
                shadow = parameter.data if updated else parameter.detach()
                self.shadows[parameter] = shadow.requires_grad_(parameter.requires_grad)
        self._swap = Swap([(container, key) for container, key, _ in slots])
        self._values = [self.shadows[parameter] for _, _, parameter in slots]
        self._storages = [storage(shadow) for shadow in self.shadows.values()]
        self._counters: list[int] = []

    def in_place(self) -> contextlib.AbstractContextManager:
        """Inside, the shadows are in the place of the module's parameters."""
        return self._swap.to(self._values)

    @property
    def trains(self) -> bool:
        return any(shadow.requires_grad for shadow in self.shadows.values())

    def mark(self) -> None:
        """After a forward: from now on `changed` tells whether somebody wrote into the weights."""
        self._counters = [shadow._version for shadow in self.shadows.values()]

    @property
    def changed(self) -> bool:
        return self._counters != [shadow._version for shadow in self.shadows.values()]

    def hand_on_new_data(self) -> None:
        """A layer that constrains its weights may have said weight.data = ... to a shadow."""
        for index, (parameter, shadow) in enumerate(self.shadows.items()):
            if storage(shadow) != self._storages[index]:
                parameter.data = shadow.data
                self._storages[index] = storage(shadow)

    def take_gradients(self) -> Gradients:
        """What has gathered for each parameter since the last time."""
        gradients = {parameter: shadow.grad for parameter, shadow in self.shadows.items()}
        for shadow in self.shadows.values():
            shadow.grad = None
        return gradients


def accumulate(parameter: nn.Parameter, gradient: torch.Tensor | None) -> None:
    """Add to a parameter's `.grad`, as a backward would: its hooks run."""
    if gradient is None:
        return
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        torch.autograd.backward([parameter], [gradient])   # which keeps a copy
    elif parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient


def storage(tensor: torch.Tensor) -> int | None:
    """Which memory a dense tensor uses; None for others."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return tensor.untyped_storage()._cdata if plain else None
