"""What the optimizers of an offloaded model remember, as whole tensors under the plain model's names.

In the stores every rank has its share of it (see `fewgpu.offload.shares`); here it is put together, so that
other engines, or another number of ranks, can go on from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fewgpu.offload.packed import unpack
from fewgpu.offload.unit import Piece
from fewgpu.offload.versions import Versions
from fewgpu.optimizer_state import verify_same_kind

State = Mapping[str, Mapping[str, Any]]   # see fewgpu.optimizer_state


def verify_state_dict(state: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor],
                      shapes: Mapping[nn.Parameter, torch.Size]) -> None:
    """Raises ValueError for other keys or shapes than those of what is held (for parameters, `shapes`)."""
    asked = {key: shapes.get(value, value.shape) for key, value in held.items()}
    given = {key: value.shape for key, value in state.items()}
    if wrong := sorted(key for key in {*asked, *given} if asked.get(key) != given.get(key)):
        key = wrong[0]
        raise ValueError(f'the state_dict is of another model: {key} has the shape {given.get(key)} there and '
                         f'{asked.get(key)} here (None: is missing)')


def optimizer_state(module: nn.Module, pieces: Sequence[Piece], versions: Versions) -> dict[str, dict[str, Any]]:
    """See Offloaded.optimizer_state."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    found: dict[str, dict[str, Any]] = {'state': {}, 'options': {}}
    for piece in (piece for piece in pieces if piece.hosts):
        held = _held(piece, versions)
        for key in dict.fromkeys(key for _, state in held.values() for key in state):
            values = _whole(piece, held, key, piece.read(versions))
            for parameter, k, value in zip(piece.parameters, piece.share.places, values):
                if k in held and key in held[k][1]:
                    found['state'].setdefault(names[parameter], {})[key] = value
        for parameter, k in zip(piece.parameters, piece.share.places):
            if piece.share.trained[k]:
                group = _group(piece, _hosts(piece)[k])
                found['options'][names[parameter]] = {key: value for key, value in group.items() if key != 'params'}
    return found


def _hosts(piece: Piece) -> dict[int, nn.Parameter]:
    """By the number of the tensor that is kept."""
    return dict(zip((k for k, trained in enumerate(piece.share.trained) if trained), piece.hosts))


def _held(piece: Piece, versions: Versions) -> dict[int, tuple[torch.Tensor, dict[str, Any]]]:
    """By the number of the tensor that is kept: it, and what is remembered of it."""
    own = piece.read(versions)
    try:
        unpack(piece.optimizer, piece.hosts, *piece.read_states(versions))
        return {k: (own[k], dict(piece.optimizer.state.get(host, {}))) for k, host in _hosts(piece).items()}
    finally:
        piece.let_go()


def _whole(piece: Piece, held: Mapping[int, tuple[torch.Tensor, dict[str, Any]]], key: str,
           own: list[torch.Tensor]) -> list[Any]:
    """What `key` is for each parameter: a part of a tensor that is as the parameters are, or one for all."""
    shared_out = {k for k, (values, state) in held.items() if _is_shared_out(key, state.get(key), values)}
    for k in shared_out:
        own[k] = held[k][1][key]
    whole = piece.share.whole(own)
    return [whole[i] if k in shared_out else _copied(held[k][1].get(key)) if k in held else None
            for i, k in enumerate(piece.share.places)]


def _is_shared_out(key: str, value: Any, like: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == like.shape and key != 'step'


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _group(piece: Piece, host: nn.Parameter) -> dict[str, Any]:
    return next(group for group in piece.optimizer.param_groups if any(each is host for each in group['params']))


def load_optimizer_state(module: nn.Module, pieces: Sequence[Piece], versions: Versions, saved: State,
                         shapes: Mapping[nn.Parameter, torch.Size]) -> None:
    """See Offloaded.load_optimizer_state. `shapes` are those that the parameters have when they are here."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    for parameter in (parameter for piece in pieces for parameter in piece.parameters if parameter.requires_grad):
        if names[parameter] not in saved['options']:
            raise KeyError(f'the checkpoint has no optimizer state of {names[parameter]}: was it saved with this '
                           f'model?')
    for piece in pieces:
        try:
            for k, host in reversed(_hosts(piece).items()):   # of a group the first one counts
                members = [parameter for parameter, place in zip(piece.parameters, piece.share.places) if place == k]
                verify_same_kind(_group(piece, host), saved['options'][names[members[0]]])
                _group(piece, host).update(saved['options'][names[members[0]]])
                if state := _own(piece, k, members, [saved['state'].get(names[each], {}) for each in members], shapes):
                    piece.optimizer.state[host] = state
            piece.write_states(versions)
        finally:
            piece.let_go()


def _own(piece: Piece, k: int, members: Sequence[nn.Parameter], states: Sequence[Mapping[str, Any]],
         shapes: Mapping[nn.Parameter, torch.Size]) -> dict[str, Any]:
    """This rank's share of what is remembered of the parameters that are kept in tensor k: zeros of one that has
    had no gradient yet."""
    found: dict[str, Any] = {}
    first, known = next(((each, state) for each, state in zip(members, states) if state), (None, {}))
    for key, value in known.items():
        if not (isinstance(value, torch.Tensor) and value.shape == shapes[first] and key != 'step'):
            found[key] = _copied(value)
            continue
        of = {each: _copied(state[key]) for each, state in zip(members, states) if key in state}
        found[key] = piece.share.own([of[each] if each in of else torch.zeros(shapes[each], dtype=value.dtype)
                                      for each in piece.parameters])[k]
    return found
