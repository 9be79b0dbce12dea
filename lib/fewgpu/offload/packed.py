"""What an optimizer remembers, as it is written to a store and read again."""

import warnings
from typing import Any

import torch
from torch import nn


def packed(optimizer: torch.optim.Optimizer, hosts: list[nn.Parameter]) -> tuple[list[torch.Tensor], Any]:
    """The tensors of the optimizer's states, and where they belong: [parameter, key, its number or value]."""
    tensors: list[torch.Tensor] = []
    places: list[tuple[int, str, int | None, Any]] = []
    for index, host in enumerate(hosts):
        for key, value in optimizer.state.get(host, {}).items():
            if isinstance(value, torch.Tensor):
                places.append((index, key, len(tensors), None))
                tensors.append(value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                places.append((index, key, None, value))
            else:
                raise TypeError(f"{type(optimizer).__name__} keeps {key!r}, a {type(value).__name__}, which "
                                f'cannot be stored: use an optimizer whose states are tensors and numbers')
    return tensors, places


def unpack(optimizer: torch.optim.Optimizer, hosts: list[nn.Parameter], tensors: list[torch.Tensor],
            places: Any) -> None:
    for index, key, number, value in places:
        optimizer.state[hosts[index]][key] = value if number is None else tensors[number]


def options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of its groups: the learning rate and the like, as far as they can be written down."""
    return [{key: value for key, value in group.items() if _is_plain(value)} for group in optimizer.param_groups]


def verify_options(stored: list[dict[str, Any]], asked: list[dict[str, Any]]) -> None:
    """What makes the optimizers now, against what made them when the store began. Raises ValueError for other groups
    of parameters; warns of other options, for those in the store count."""
    if len(stored) != len(asked):
        raise ValueError(f'an optimizer has {len(stored)} group(s) of parameters in the store, and {len(asked)} here: '
                         f'go on with the optimizer that it began with')
    for before, now in zip(stored, asked):
        plain = {key: [*value] if isinstance(value, tuple) else value for key, value in now.items()}
        if other := [key for key in plain if plain[key] != before.get(key, plain[key])]:
            said = ', '.join(f'{key}={before[key]!r} and not {now[key]!r}' for key in other)
            warnings.warn(f'the store goes on with the options that it began with and was trained to: it began with '
                          f'{said}; to change them set model.optimizers[i].param_groups', stacklevel=4)


def restore_options(optimizer: torch.optim.Optimizer, written: list[dict[str, Any]]) -> None:
    for group, values in zip(optimizer.param_groups, written):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _is_plain(value: Any) -> bool:
    """Can an option of an optimizer be written down? (Its parameters cannot.)"""
    return value is None or isinstance(value, (bool, int, float, str)) or (
        isinstance(value, (list, tuple)) and all(isinstance(part, (bool, int, float)) for part in value))
