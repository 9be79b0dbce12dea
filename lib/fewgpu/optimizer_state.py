"""What optimizers remember, by the names of the parameters: so it moves between engines, cuts and world sizes."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

Named = Iterable[tuple[str, nn.Parameter]]
_NOT_OPTIONS = {'params', 'initial_lr', 'param_names'}


def named_state(named: Named, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, dict[str, Any]]:
    """{'state': {name: what is remembered of it}, 'options': {name: learning rate and the like}}.

    `named` are the parameters of a model, `optimizers` one or several that train them. Tensors are the
    optimizer's own, not copies. Raises ValueError for a parameter of an optimizer that has no name.
    """
    names = {parameter: name for name, parameter in named}
    found: dict[str, dict[str, Any]] = {'state': {}, 'options': {}}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            options = {key: value for key, value in group.items() if key != 'params'}
            for parameter in group['params']:
                if parameter not in names:
                    raise ValueError(f'the optimizer trains a parameter of shape {tuple(parameter.shape)} that is not '
                                     f'in the model: pass the model that it was made for')
                found['options'][names[parameter]] = options
                if parameter in optimizer.state:
                    found['state'][names[parameter]] = dict(optimizer.state[parameter])
    return found


def verify_belongs(module: nn.Module, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """For engines that hold a whole model. Raises ValueError for a state that has names which the model has not."""
    known = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    if unknown := sorted({*saved['options'], *saved['state']} - known)[:3]:
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        lacking = sorted(trained - {*saved['options']})[:3]
        raise ValueError(f'the state belongs to another model: this one has no {", ".join(unknown)}'
                         + (f', but {", ".join(lacking)}' if lacking else ''))


def verify_same_kind(group: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raises ValueError if the saved options are those of another kind of optimizer than this group of parameters:
    if each has some that the other has not. (A version of torch may add an option, a schedule adds 'initial_lr'.)"""
    own = sorted(group.keys() - saved.keys() - _NOT_OPTIONS)
    others = sorted(saved.keys() - group.keys() - _NOT_OPTIONS)
    if own and others:
        raise ValueError(f'the checkpoint was saved with another kind of optimizer: it has {", ".join(others)}, '
                         f'and this one {", ".join(own)}. Go on with the same kind, or load the weights alone '
                         f"(model.load_state_dict(saved.whole('model')))")


def load_named_state(named: Named, optimizers: Iterable[torch.optim.Optimizer],
                     saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Give every optimizer what was remembered of its parameters; `saved` may have more names.

    They get copies: several may train replicas of one parameter. The options of a group of parameters are those
    of its first one. Raises, before anything has changed, KeyError for a parameter that was not saved, and ValueError
    for another kind of optimizer.
    """
    names = {parameter: name for name, parameter in named}
    loads = []
    for optimizer in optimizers:
        own = optimizer.state_dict()   # with numbers in the place of parameters
        state = {}
        for group, numbered in zip(optimizer.param_groups, own['param_groups'], strict=True):
            of_group = [names[parameter] for parameter in group['params']]
            for name, number in zip(of_group, numbered['params'], strict=True):
                if name not in saved['options']:
                    raise KeyError(f'the checkpoint has no optimizer state of {name}: was it saved with this model?')
                if name in saved['state']:
                    state[number] = pytree.tree_map_only(torch.Tensor, torch.clone, dict(saved['state'][name]))
            if of_group:
                verify_same_kind(group, saved['options'][of_group[0]])
                numbered.update(saved['options'][of_group[0]])
        loads.append((optimizer, {'state': state, 'param_groups': own['param_groups']}))
    for optimizer, state in loads:
        optimizer.load_state_dict(state)
