"""All that a run needs to go on: weights, what optimizers remember, random numbers; of any engine."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fewgpu.optimizer_state import load_named_state, named_state
from fewgpu.tensor_parallel import Sharded, own_state_dict, plain_state_dict
from fewgpu.tensor_parallel_state import own_optimizer_state, plain_optimizer_state

if TYPE_CHECKING:
    from fewgpu.checkpoint import Saved


def training_state(model: Any, optimizer: torch.optim.Optimizer | None = None, **more: Any) -> dict[str, Any]:
    """All that a run needs to go on, of this rank: weights, what the optimizer remembers, random numbers.

    `model` is a module, or an engine that has its optimizers itself (Pipeline, ZeRO, ...). `more` are objects
    with a state_dict (a scaler, a `LossScale`, a learning-rate schedule) or plain values (the epoch). All ranks call
    it. What several ranks hold, only the first of them keeps; buffers of pipelines side by side are each one's own.
    The names are the plain model's, and values whole: any engine goes on from them. (Buffers of replicas within one
    process are those of the first.)
    """
    whole = not getattr(model, 'ranks', None)   # a Pipeline on ranks: each holds its stages
    keeps = not whole or not dist.is_initialized() or dist.get_rank() == 0
    module = model if isinstance(model, torch.nn.Module) else model.module
    cut = any(isinstance(part, Sharded) for part in module.modules())
    weights = plain_state_dict(module) if cut else model.state_dict()   # on ranks it may take all of them
    if hasattr(model, 'optimizer_state'):
        remembered = model.optimizer_state()
    else:
        remembered = named_state(model.named_parameters(), [optimizer] if optimizer else [])
    remembered = plain_optimizer_state(module, remembered) if cut else remembered
    if hasattr(model, 'kept_elsewhere'):
        others = model.kept_elsewhere()
        weights = {name: value for name, value in weights.items() if name not in others}
        remembered = {what: {name: value for name, value in entries.items() if name not in others}
                      for what, entries in remembered.items()}
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {'model': weights if keeps else {}, 'optimizer': remembered if keeps else {},
            'random': {'cpu': torch.get_rng_state(), 'gpus': gpus},
            'more': {name: value.state_dict() if hasattr(value, 'state_dict') else value
                     for name, value in more.items()}}


def load_training_state(saved: 'Saved', model: Any, optimizer: torch.optim.Optimizer | None = None,
                        **more: Any) -> dict[str, Any]:
    """Go on where `training_state` was taken, perhaps by another engine, cut or number of ranks.

    Objects in `more` take their state; the plain values are returned. With another number of ranks the random
    numbers go on as rank 0's. Raises KeyError if something is missing, ValueError for another kind of optimizer (both
    before anything has changed), RuntimeError, as torch does, if weights are missing or of other shapes.
    """
    if saved is None:
        raise TypeError('there is no checkpoint yet: latest() gave None, so begin from the start')
    if missing := sorted(more.keys() - saved.own()['more'].keys()):
        raise KeyError(f'the checkpoint has no {", ".join(missing)}: training_state(..., {missing[0]}=...) saves it')
    module = model if isinstance(model, torch.nn.Module) else model.module
    own, weights = saved.own(), saved.whole('model')
    if len(saved.parts) == (dist.get_world_size() if dist.is_initialized() else 1):
        weights |= own['model']   # of pipelines side by side each has running statistics of its own
    remembered: dict[str, dict[str, Any]] = {'state': {}, 'options': {}}
    for part in reversed(saved.parts):
        for what, entries in (part.get('optimizer') or {}).items():
            remembered[what].update(entries)
    remembered = own_optimizer_state(module, remembered)
    if hasattr(model, 'load_optimizer_state'):
        model.load_optimizer_state(remembered)
    elif optimizer is not None:
        load_named_state(model.named_parameters(), [optimizer], remembered)
    model.load_state_dict(own_state_dict(module, weights))
    torch.set_rng_state(own['random']['cpu'])
    for gpu, state in enumerate(own['random']['gpus'][:torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, gpu)
    for name, thing in more.items():
        thing.load_state_dict(own['more'][name])
    return {name: value for name, value in own['more'].items() if name not in more}
