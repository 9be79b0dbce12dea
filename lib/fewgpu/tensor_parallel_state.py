"""What is remembered of tensor-parallel parameters, whole: so that a checkpoint moves to other numbers of parts.

The states of an optimizer that are like its parameters (momentum, say) are cut as those are.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fewgpu.collectives import Group
from fewgpu.tensor_parallel import Cut, Sharded


def plain_optimizer_state(module: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `fewgpu.optimizer_state.named_state` gives for the plain module; all ranks of the group call it."""
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    return _changed(module, state, shapes, lambda cut, value, group: cut.whole(value, group))


def own_optimizer_state(module: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """This rank's share of what `plain_optimizer_state` gave."""
    parameters = dict(module.named_parameters())
    shapes = {name: torch.Size(size * group.size if dim == cut.dim else size
                               for dim, size in enumerate(parameters[name].shape))
              for name, (cut, group) in _cuts(module).items() if name in parameters}
    return _changed(module, state, shapes, lambda cut, value, group: cut.own(value, group).detach())


def _changed(module: nn.Module, state: Mapping[str, Mapping[str, Any]], shapes: Mapping[str, torch.Size],
             change: Callable[[Cut, Tensor, Group], Tensor]) -> dict[str, dict[str, Any]]:
    cuts, found = _cuts(module), dict(state['state'])
    for name in (name for name in cuts if name in found):   # in the order of all ranks
        found[name] = {key: change(cuts[name][0], value, cuts[name][1]) if key != 'step'
                       and isinstance(value, Tensor) and value.shape == shapes[name] else value
                       for key, value in found[name].items()}
    return {**state, 'state': found}


def _cuts(module: nn.Module) -> dict[str, tuple[Cut, Group]]:
    """How each parameter is cut, and over whom."""
    return {f'{prefix}.{name}' if prefix else name: (cut, part.group) for prefix, part in module.named_modules()
            if isinstance(part, Sharded) for name, cut in part.cuts.items()}
