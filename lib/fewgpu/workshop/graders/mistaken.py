"""What would come out of a recompute with a well-known mistake in it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.graders.plays import MakeStage, paired


def mistaken(mistake: str) -> MakeStage:
    """A stage that recomputes, and is right but for one mistake.

    It is named by its misconception, and where that can be made in several ways by a few words more, after a comma.
    """
    mistake, _, way = mistake.partition(', ')
    slot: list[Any] = []

    def forward(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        state, counted, modes = torch.get_rng_state(), [buffer.clone() for buffer in layer.buffers()], _modes(layer)
        given = x if mistake == 'input-overwritten' else x.clone()
        if mistake == 'rounded' and x.is_floating_point():
            given = x.to(torch.float32 if way == 'single' else torch.float16).to(x.dtype)
        if mistake == 'eval-forward':
            layer.eval()
        with torch.no_grad():
            y = layer(x)
        _set_modes(layer, modes)
        if mistake == 'state-too-late':
            state = torch.get_rng_state()
        if mistake == 'counted-late':
            _restore(layer, counted)
        if way != 'before':
            counted = [buffer.clone() for buffer in layer.buffers()]
        slot[:] = [given, state, counted]
        return y, (given, state, counted)

    def backward(layer: nn.Module, kept: Any, gradient: torch.Tensor) -> torch.Tensor | None:
        given, state, at_forward = slot if mistake == 'one-slot' else kept
        mine = torch.get_rng_state()
        x = given.detach().requires_grad_(given.is_floating_point() and way != 'no leaf')
        counted, modes = list(_after_recompute(layer, mistake)), _modes(layer)
        torch.set_rng_state(state)
        if mistake == 'eval-recompute':
            layer.eval()
        if mistake == 'frozen-graded' and not way:
            layer.requires_grad_()
        if mistake in ('not-accumulated', 'parameters-forgotten'):
            grads = [None if mistake == 'not-accumulated' else parameter.grad for parameter in layer.parameters()]
            layer.zero_grad()
        y = layer(x.clone())
        _set_modes(layer, modes)
        if mistake == 'gradient-ignored':
            gradient = torch.ones_like(gradient) / (gradient.numel() if way == 'mean' else 1)
        y.backward(gradient)
        if mistake == 'parameters-forgotten':
            for parameter, grad in zip(layer.parameters(), grads):
                parameter.grad = grad
        if way == 'zeros':
            for parameter in layer.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if mistake not in ('counted-twice', 'counted-late'):
            _restore(layer, at_forward if mistake == 'buffers-turned-back' else counted)
        if way != 'stream left':
            torch.set_rng_state(mine)
        return {'input-forgotten': None, 'gradient-passed-on': gradient}.get(mistake, x.grad)

    return paired(forward, backward)


def _after_recompute(layer: nn.Module, mistake: str) -> Iterator[torch.Tensor]:
    """The buffers as they will be left behind."""
    for name, buffer in layer.named_buffers():
        counted = mistake == 'batches-counted-twice' and name.endswith('num_batches_tracked')
        yield buffer + 1 if counted else buffer.clone()


def _restore(layer: nn.Module, buffers: list[torch.Tensor]) -> None:
    for buffer, before in zip(layer.buffers(), buffers):
        buffer.copy_(before)


def _modes(layer: nn.Module) -> list[bool]:
    return [part.training for part in layer.modules()]


def _set_modes(layer: nn.Module, modes: list[bool]) -> None:
    for part, training in zip(layer.modules(), modes):
        part.training = training
