"""The states of an optimizer over shards, as whole tensors under the names of the parameters.

Every rank has a piece of a flat tensor that holds many parameters' momentum, say. Put together and cut
at the parameters it does not depend on the number of ranks, the stage or the units, so that it can be
loaded by other numbers of them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fewgpu.optimizer_state import verify_same_kind
from fewgpu.zero.shards import Unit

_SHARED = ('step',)   # of an optimizer's state: one number for the whole unit


def optimizer_state(optimizer: torch.optim.Optimizer, units: Sequence[Unit]) -> dict[str, Any]:
    """Gathered on every rank; see ZeRO.optimizer_state."""
    found: dict[str, dict[str, Any]] = {}
    for unit in units:
        state = optimizer.state.get(unit.trained, {})
        whole = {key: unit.views(unit.gathered(value)) for key, value in state.items()
                 if _is_sharded(key, value, unit)}
        for name, place in unit.places.items():
            found[name] = {key: (whole[key][place] if key in whole else value).clone()
                           if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    options = {name: {key: value for key, value in _group_of(optimizer, unit).items() if key != 'params'}
               for unit in units for name in unit.places}
    return {'state': {name: state for name, state in found.items() if state}, 'options': options}


@torch.no_grad()
def load_optimizer_state(optimizer: torch.optim.Optimizer, units: Sequence[Unit],
                         state: dict[str, Any]) -> None:
    """See ZeRO.load_optimizer_state."""
    names = {name for unit in units for name in unit.places}
    if missing := sorted(names - set(state['options']))[:3]:
        raise ValueError(f'the state belongs to another model: there is nothing in it of {", ".join(missing)}')
    for unit in units:
        verify_same_kind(_group_of(optimizer, unit), state['options'][unit.names[0]])
    loaded = [_of_unit(unit, [state['state'].get(name, {}) for name in unit.names]) for unit in units]
    for unit, values in reversed([*zip(units, loaded)]):   # of a group the first unit counts
        _group_of(optimizer, unit).update(state['options'][unit.names[0]])
        optimizer.state.pop(unit.trained, None)
        if values:
            optimizer.state[unit.trained] = values


def _group_of(optimizer: torch.optim.Optimizer, unit: Unit) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(each is unit.trained for each in group['params']))


def _is_sharded(key: str, value: Any, unit: Unit) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == unit.trained.shape and key not in _SHARED


def _of_unit(unit: Unit, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """This rank's part of the states of a unit's parameters, which come in the order of the unit. Nothing is
    remembered of one that has had no gradient yet: that is what zeros say."""
    found = {}
    for key, first in next(filter(None, states), {}).items():
        values = [state.get(key) if state else torch.zeros(shape).to(first)
                  if isinstance(first, torch.Tensor) else first for state, shape in zip(states, unit.shapes)]
        if key in _SHARED or not isinstance(first, torch.Tensor) or first.dim() == 0 and unit.shapes[0]:
            found[key] = first.clone() if isinstance(first, torch.Tensor) else first
            continue
        if [getattr(value, 'shape', None) for value in values] != unit.shapes:
            raise ValueError(f'{key} of {", ".join(unit.names)} has not the shapes of the parameters: the '
                             f'state belongs to another model')
        found[key] = unit.own(unit.flat_of(values)).to(unit.trained, copy=True)
    return found
