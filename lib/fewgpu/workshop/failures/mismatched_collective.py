"""Do all ranks call the same, with the same shapes?

In one step a rank calls another collective than the others, or the same with another shape, dtype or operation.
"""

from random import Random

from fewgpu.workshop.failures import Outcome
from fewgpu.workshop.failures.exchanging import HOW, STEPS, train
from fewgpu.workshop.failures.ranks import on_ranks

RANKS = 2
SIGN = ('all ranks compute, and then all stand still at the same time, none of them dead; the error names two calls '
        'and two lines')
WHAT = 'In step {step} rank {rank} made another call than the rest: {how}.'
CHANGE = ('Go to the two lines: no collective may depend on the rank (under an if, in a loop of another length), and '
          'its tensors are of one shape and dtype.')


def run(random: Random, *, fault: bool = True) -> Outcome:
    rank, how = random.randrange(RANKS), random.choice([*HOW])
    timeline, message = on_ranks(train, RANKS, rank if fault else -1, how)
    return Outcome(f'{RANKS} replicas, one a process', timeline, message, {
        'rank': rank, 'how': how, 'step': STEPS, 'calls': HOW[how][1], 'with': HOW[how][2]})
