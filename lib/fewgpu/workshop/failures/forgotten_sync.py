"""Do replicas stay the same model?

One rank averages a copy of one parameter's gradient: the others get the mean, and it updates with its own.
"""

from random import Random

import torch.distributed as dist
from torch import nn

from fewgpu.collectives import Group, all_reduce
from fewgpu.drift import Drift
from fewgpu.trace import EXCHANGE
from fewgpu.workshop.failures import Outcome
from fewgpu.workshop.failures.ranks import Diary, descend, on_ranks, replica

RANKS, STEPS = 3, 4
SIGN = ('the picture is that of a healthy run, and every loss falls: only checksums of the replicas\' parameters '
        'tell that they are others')
WHAT = ('Rank {rank} averaged a copy of the gradient of {parameter!r}, and updated with its own: a model apart from '
        'the rest.')
CHANGE = ('Average the gradients themselves, of every parameter, on every rank, before the update: DataParallel does. '
          'Load a checkpoint from before, or take the parameters of one rank.')


def run(random: Random, *, fault: bool = True) -> Outcome:
    rank, parameter = random.randrange(RANKS), f'{2 * random.randrange(4)}.{random.choice(("weight", "bias"))}'
    timeline, message = on_ranks(_train, RANKS, rank if fault else -1, parameter)
    return Outcome(f'{RANKS} replicas, one a process', timeline, message, {'rank': rank, 'parameter': parameter})


def _train(folder: str, faulty: int, forgotten: str) -> None:
    group, (model, x) = Group(time_limit=60.0), replica()
    drift = Drift(model, group, every=STEPS)
    with Diary(folder) as diary:
        for step in range(1, STEPS + 1):
            with diary.notes('F', step):
                loss = nn.functional.mse_loss(model(x), x)
            with diary.notes('B', step):
                loss.backward()
            with diary.notes(EXCHANGE, step):
                for name, parameter in model.named_parameters():
                    copied = dist.get_rank() == faulty and name == forgotten
                    all_reduce(parameter.grad.clone() if copied else parameter.grad, group, 'mean')
            with diary.notes('U', step):
                descend(model)
            drift.look()
