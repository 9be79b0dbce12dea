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
    for group, loaded in zip(optimizer.param_groups, state['param_groups']):
        group.update(loaded)
    for unit in units:
        of_parameters = [state['state'][name] for name in dict(zip(unit.places.values(), unit.places)).values()]
        optimizer.state[unit.trained] = {key: _of_unit(key, [one[key] for one in of_parameters], unit)
                                         for key in of_parameters[0]}


def _is_sharded(key: str, value: Any, unit: Unit) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == unit.trained.shape and key not in _SHARED


def _of_unit(key: str, values: Sequence[Any], unit: Unit) -> Any:
    """This rank's part of the values of a unit's parameters."""
    first = values[0]
    if not isinstance(first, torch.Tensor):
        return first
    whole = [getattr(value, 'shape', None) for value in values] == unit.shapes and key not in _SHARED
    if not whole:
        return first.clone()
    return unit.own(unit.flat_of(values)).to(unit.trained, copy=True)
