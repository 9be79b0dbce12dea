"""Trade time for memory: forward without keeping a graph, and later the same forward with it.

    forward     runs the stage, keeps its input, lets every activation go
    recompute   runs it again on that input: same random stream, same autocast, and on copies of
                the buffers, so that batch norm's running statistics are updated once

Chen et al. 2016 (arXiv 1604.06174) have the idea, GPipe (arXiv 1811.06965, section 2.3) uses it at
the boundaries of stages.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_thread = threading.local()


def is_checkpointing() -> bool:
    """True in a layer's forward that keeps no graph, because it will run a second time."""
    return getattr(_thread, 'checkpointing', False)


def is_recomputing() -> bool:
    """True in a layer's forward while it runs for the second time: do not count things twice."""
    return getattr(_thread, 'recomputing', False)


@contextlib.contextmanager
def recomputing(again: bool = True) -> Iterator[None]:
    """Inside, `is_recomputing()` answers `again`."""
    before, _thread.recomputing = is_recomputing(), again
    try:
        yield
    finally:
        _thread.recomputing = before


@contextlib.contextmanager
def dropping_graph() -> Iterator[None]:
    """Inside, autograd builds its graph but saves no tensor in it.

    Under no_grad nobody would know which outputs need a gradient, and layers that ask whether
    gradients are enabled would behave differently the second time.
    """
    before, _thread.checkpointing = is_checkpointing(), True
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, _dropped):
            yield
    finally:
        _thread.checkpointing = before


def _dropped(_: Any) -> torch.Tensor:
    raise RuntimeError('a backward through a forward that is to be recomputed: its layers must not '
                       'call backward themselves')


class Swap:
    """Replaces parameters or buffers of a module for a while: a list of (container, key) slots.

    The slots are collected once. What is put back is what was found, so that swaps nest.
    """

    def __init__(self, slots: list[tuple[Any, Any]]) -> None:
        self.slots = slots

    @contextlib.contextmanager
    def to(self, values: list[Any]) -> Iterator[None]:
        found = [container[key] for container, key in self.slots]
        self._put(values)
        try:
            yield
        finally:
            self._put(found)

    def _put(self, values: list[Any]) -> None:
        for (container, key), value in zip(self.slots, values):
            container[key] = value


def parameter_slots(module: nn.Module) -> list[tuple[Any, Any, nn.Parameter]]:
    """Every place in the module that refers to a parameter: container, key, parameter."""
    slots = [(part._parameters, name, parameter) for part in module.modules()
             for name, parameter in part._parameters.items() if parameter is not None]
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part._update_flat_weights()   # somebody may have given it other parameters
            slots += [(container, i, weight) for container in (part._flat_weights, _References(part._flat_weight_refs))
                      for i, weight in enumerate(part._flat_weights) if weight is not None]
    return slots


class _References:
    """A recurrent layer keeps a list of its parameters beside `_parameters`, and weak references, by which its
    forward sees whether they are others than before: if so it makes a new list, which nobody would put back."""

    def __init__(self, references: list[weakref.ReferenceType | None]) -> None:
        self._references = references

    def __getitem__(self, index: int) -> Any:
        reference = self._references[index]
        return None if reference is None else reference()

    def __setitem__(self, index: int, value: Any) -> None:
        self._references[index] = None if value is None else weakref.ref(value)


def buffer_slots(module: nn.Module) -> list[tuple[Any, Any]]:
    """Every place for a buffer, also where there is None so far."""
    return [(part._buffers, name) for part in module.modules() for name in part._buffers.keys()]


class Buffers:
    """What the buffers of a module held when a forward began, for its recompute.

    `overwritten` is shared by the micro-batches of a step: one that only read a buffer finds there
    what a later one wrote over.
    """

    def __init__(self, module: nn.Module, overwritten: dict) -> None:
        self._swap = Swap(buffer_slots(module))
        self._overwritten = overwritten   # (id, version) -> buffer, copy of that version
        held = [container[key] for container, key in self._swap.slots]
        self._before = [(buffer, 0 if buffer is None else buffer._version) for buffer in held]
        self._copies = [None if buffer is None else buffer.clone() for buffer in held]

    @property
    def keys(self) -> set[tuple[int, int]]:
        """Under what it looks up, in `overwritten`, what was written over."""
        return {(id(buffer), version) for buffer, version in self._before}

    def forget_unchanged(self) -> None:
        """After the forward: most buffers were only read; copies of those need not be kept."""
        for (buffer, version), copy in zip(self._before, self._copies):
            if buffer is not None and buffer._version != version:
                self._overwritten[id(buffer), version] = buffer, copy
        self._copies = []

    def restored(self) -> contextlib.AbstractContextManager:
        """Inside, the module works on copies of what the buffers held.

        Raises RuntimeError if something else than a forward of this step has changed them.
        """
        return self._swap.to([self._held(buffer, version) for buffer, version in self._before])

    def _held(self, buffer: torch.Tensor | None, version: int) -> torch.Tensor | None:
        if buffer is None or buffer._version == version:
            return None if buffer is None else buffer.clone()
        if (id(buffer), version) not in self._overwritten:
            raise RuntimeError('a buffer has changed since the forward that is to be recomputed: '
                               "change it after the backward, or use checkpoint='never'")
        return self._overwritten[id(buffer), version][1].clone()
