"""What makes optimizers. Engines have one for each part of a model, so they are given a function, not an optimizer."""

import inspect
from typing import Any

from fewgpu.pipemare import PipeMare


def verify_maker(make: Any, part: str) -> None:
    """Raises TypeError for an optimizer, or its name, instead of what makes one for each `part`."""
    if not callable(make):
        raise TypeError(f'every {part} has an optimizer of its own: pass what makes it, as '
                        f'optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), not {make!r:.60}')


def verify_made(optimizer: Any) -> Any:
    """The optimizer that was made. Raises TypeError if it is none, or computes the loss several times a step."""
    if not all(hasattr(optimizer, name) for name in ('step', 'zero_grad', 'param_groups')):
        raise TypeError(f'optimizer is to return an optimizer for the parameters that it is given, and returned '
                        f'{optimizer!r}')
    inner = optimizer.optimizer if isinstance(optimizer, PipeMare) else optimizer
    closure = inspect.signature(inner.step).parameters.get('closure')
    if closure is not None and closure.default is closure.empty:
        raise TypeError(f'{type(inner).__name__} computes the loss several times in a step, which an engine that '
                        f'updates by itself cannot: choose another optimizer')
    return optimizer
