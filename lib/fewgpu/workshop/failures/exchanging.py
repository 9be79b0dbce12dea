"""The training of the ranks that call different collectives.

It has a file of its own, as its name is in the message, from which learners are to find out what is wrong.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.collectives import Group, all_gather, all_reduce, broadcast
from fewgpu.trace import EXCHANGE
from fewgpu.workshop.failures.ranks import Diary, descend, replica

STEPS = 3   # it happens in the last step


def _gathers(flat: torch.Tensor, group: Group) -> None:
    all_gather(list(flat.tensor_split(group.size)), group)


def _broadcasts(flat: torch.Tensor, group: Group) -> None:
    broadcast(flat, group, root=group.rank)


def _shorter(flat: torch.Tensor, group: Group) -> None:
    all_reduce(flat[:-512], group, 'mean')


def _doubles(flat: torch.Tensor, group: Group) -> None:
    all_reduce(flat.double(), group, 'mean')


def _sums(flat: torch.Tensor, group: Group) -> None:
    all_reduce(flat, group, 'sum')


HOW: dict[str, tuple[Callable[[torch.Tensor, Group], None], str, str]] = {   # the call, and how a message names it
    'an all_gather': (_gathers, 'all_gather', ''),
    'a broadcast': (_broadcasts, 'broadcast', ''),
    'a tensor that lacks the last bias': (_shorter, 'all_reduce', ''),
    'float64 numbers': (_doubles, 'all_reduce', 'float64'),
    'a sum in place of a mean': (_sums, 'all_reduce', 'sum'),
}


def train(folder: str, faulty: int, how: str) -> None:
    group, (model, x) = Group(time_limit=60.0), replica()
    with Diary(folder) as diary:
        for step in range(1, STEPS + 1):
            with diary.notes('F', step):
                loss = nn.functional.mse_loss(model(x), x)
            with diary.notes('B', step):
                loss.backward()
            flat = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])
            with diary.notes(EXCHANGE, step):
                if step == STEPS and dist.get_rank() == faulty:
                    HOW[how][0](flat, group)
                else:
                    all_reduce(flat, group, 'mean')
            with diary.notes('U', step):
                for parameter, mean in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
                    parameter.grad = mean.view_as(parameter)
                descend(model)
