"""Which parameters of a module are gathered together: those of each of its children."""

import torch
from torch import nn

from fewgpu.recompute import parameter_slots
from fewgpu.zero.shards import Line, Slots, Unit


def make_units(module: nn.Module, line: Line, stage: int,
               precision: torch.dtype | None) -> list[tuple[nn.Module, Unit]]:
    """The units, each with the module during whose forward they are needed, in order.

    Raises ValueError if there is nothing to learn, if units would share a parameter, or if one has
    parameters of several dtypes or devices.
    """
    learned = {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    if not learned:
        raise ValueError('no parameter of the module requires a gradient: there is nothing to share out')
    owners = [(owner, [slot for slot in slots if slot[2].requires_grad]) for owner, slots in _owners(module)]
    owners = [(owner, slots) for owner, slots in owners if slots]
    if precision is not None:
        _round_rest(module, precision)
    seen: dict[nn.Parameter, int] = {}
    for number, (_, slots) in enumerate(owners):
        parameters = [parameter for _, _, parameter in slots]
        for parameter in parameters:
            if seen.setdefault(parameter, number) != number:
                names = ' and '.join(name for name, p in learned.items() if p is parameter)
                raise ValueError(f'{names} are one parameter, in two units: put both layers into one '
                                 f'child of the module, or let each have its own')
        if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
            raise ValueError('the parameters of a unit have one dtype and device: convert the module first')
    return [(owner, Unit(slots, learned, line, stage=stage, precision=precision)) for owner, slots in owners]


def _round_rest(module: nn.Module, precision: torch.dtype) -> None:
    """Buffers, and parameters that are not learned."""
    for tensor in [*module.buffers(), *(p for p in module.parameters() if not p.requires_grad)]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(precision)


def _owners(module: nn.Module) -> list[tuple[nn.Module, Slots]]:
    """The module with what it uses itself, then the children whose forward it calls."""
    own, children = _own_slots(module), []
    waiting = list(module.children())
    while waiting:
        child = waiting.pop(0)
        if type(child).forward is nn.Module.forward:   # a list of layers has no forward of its own
            own += _own_slots(child)
            waiting = [*child.children(), *waiting]
        elif child not in [other for other, _ in children]:
            children.append((child, parameter_slots(child)))
    return [(module, own), *children]


def _own_slots(module: nn.Module) -> Slots:
    if isinstance(module, nn.RNNBase):   # has a second list of them
        return parameter_slots(module)
    return [(module._parameters, name, parameter) for name, parameter in module._parameters.items()
            if parameter is not None]
