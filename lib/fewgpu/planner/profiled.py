"""The chain of a model, measured here, for the planners. (The one planner module that imports torch.)"""

from typing import Any

from torch import nn

from fewgpu import balance
from fewgpu.balance.sandbox import AnyDevice
from fewgpu.planner.chain import Chain, Layer


def profile(module: nn.Sequential, sample: Any, *, timeout: float = 1.0,
            device: AnyDevice | None = None) -> Chain:
    """Measure forward and backward, weights and outputs of every layer, and leave everything as it was.

    `sample` is an input of as many rows as a mini-batch has. Arguments and errors are those of
    `fewgpu.balance.profile`; seconds are those of its fastest round. PipeDream averages 1,000 mini-batches
    instead (arXiv 1806.03377, section 3.3), on a GPU that nobody shares.
    """
    costs = balance.profile(module, sample, timeout=timeout, device=device)
    return Chain([Layer(name, cost.forward + cost.backward, cost.parameter_bytes, cost.output_bytes)
                  for name, cost in zip(module._modules, costs)])   # (named_children leaves repeats out)
