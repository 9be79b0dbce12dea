"""Ranks that train one model together start from the same numbers."""

import torch
from torch import nn

from fewgpu.buckets import fingerprint
from fewgpu.collectives import all_gather, broadcast
from fewgpu.group import Group


@torch.no_grad()
def start_alike(module: nn.Module, group: Group) -> None:
    """All ranks of the group take the parameters and buffers of its first one; all call it.

    Raises ValueError, on every rank, if their modules differ.
    """
    state = [*module.named_parameters(), *module.named_buffers()]
    facts = [sum(parameter.requires_grad for parameter in module.parameters()), len(state),
             sum(tensor.numel() for _, tensor in state), fingerprint(state)]
    every = [torch.tensor(facts, device=state[0][1].device if state else 'cpu') for _ in range(group.size)]
    all_gather(every, group)
    if any(theirs.tolist() != facts for theirs in every):
        found = ', '.join(f'rank {r} {theirs.tolist()}' for r, theirs in enumerate(every))
        raise ValueError(f'the ranks have different modules (learned parameters, tensors, numbers, a checksum of '
                         f'names and shapes): {found}: every rank makes the same model, and the same cut')
    for _, tensor in state:
        broadcast(tensor.detach(), group)
