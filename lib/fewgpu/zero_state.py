"""The states of an optimizer over shards, as whole tensors under the names of the parameters.

Every rank has a piece of a flat tensor that holds many parameters' momentum, say. Put together and cut
at the parameters it does not depend on the number of ranks, the stage or the units, so that it can be
loaded by other numbers of them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fewgpu.shards import Unit

_SHARED = ('step',)   # of an optimizer's state: one number for the whole unit


def optimizer_state(optimizer: torch.optim.Optimizer, units: Sequence[Unit]) -> dict[str, Any]:
    """Gathered on every rank; see ZeRO.optimizer_state."""
    found: dict[str, dict[str, Any]] = {}
    for unit in units:
        state = optimizer.state.get(unit.trained, {})
        whole = {key: unit.views(unit.gathered(value)) for key, value in state.items()
                 if _is_sharded(key, value, unit)}
        for name, place in unit.places.items():
            found[name] = {key: whole[key][place] if key in whole else value
                           for key, value in state.items()}
    groups = [{key: value for key, value in group.items() if key != 'params'}
              for group in optimizer.param_groups]
    return {'state': found, 'param_groups': groups}


@torch.no_grad()
def load_optimizer_state(optimizer: torch.optim.Optimizer, units: Sequence[Unit],
                         state: dict[str, Any]) -> None:
    """See ZeRO.load_optimizer_state."""
    names = {name for unit in units for name in unit.places}
    if names != set(state['state']) or len(state['param_groups']) != len(optimizer.param_groups):
        odd = sorted(names ^ set(state['state']))[:3]
        raise ValueError(f'the state belongs to another model or optimizer; different are, for example: '
                         f'{", ".join(odd) or "groups of parameters"}')
    loaded = [_of_unit(unit, [state['state'][name] for name in unit.names]) for unit in units]
    for group, values in zip(optimizer.param_groups, state['param_groups']):
        group.update(values)
    for unit, values in zip(units, loaded):
        optimizer.state[unit.trained] = values


def _is_sharded(key: str, value: Any, unit: Unit) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == unit.trained.shape and key not in _SHARED


def _of_unit(unit: Unit, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """This rank's part of the states of a unit's parameters, which come in the order of the unit."""
    found = {}
    for key, first in states[0].items():
        values = [state.get(key) for state in states]
        if key in _SHARED or not isinstance(first, torch.Tensor) or first.dim() == 0 and unit.shapes[0]:
            found[key] = first.clone() if isinstance(first, torch.Tensor) else first
            continue
        if [getattr(value, 'shape', None) for value in values] != unit.shapes:
            raise ValueError(f'{key} of {", ".join(unit.names)} has not the shapes of the parameters: the '
                             f'state belongs to another model')
        found[key] = unit.own(unit.flat_of(values)).to(unit.trained, copy=True)
    return found
