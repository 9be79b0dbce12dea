"""Are the gradients those of the plain model?

The loss of the micro-batches is weighted wrongly: the training runs, with another learning rate than the one asked for.
"""

import copy
from random import Random

from torch import nn

from fewgpu.against_plain import against_plain
from fewgpu.device import Device
from fewgpu.workshop.failures import Outcome
from fewgpu.workshop.failures.pipelines import DEVICES, PACE, mini_batch, pipeline, warm_up

SIGN = ('the picture is that of a healthy run, and nothing fails: only the length of the gradients is another one than '
        'the plain model\'s, by a factor that is a count')
WHAT = 'The loss of the micro-batches was {how}, so that gradients were {times:.3g} times the right ones.'
CHANGE = ('Let the loss be the plain mean over the rows it is given (or a sum that says reduction=\'sum\'), and leave '
          'weighting micro-batches to the engine.')

plain = nn.functional.mse_loss
HOW = {   # what was done by hand to each micro-batch's mean, before the engine weights it
    'multiplied': 'multiplied by {chunks} by hand (so that their means are added up, and not averaged)',
    'divided': 'divided by {chunks} by hand, as the engine does, too',
}


def run(random: Random, *, fault: bool = True) -> Outcome:
    how, chunks = random.choice([*HOW]), random.randint(3, 6)
    times = (float(chunks) if how == 'multiplied' else 1 / chunks) if fault else 1.0
    devices = [Device('cpu', index=index, pace=PACE) for index in range(DEVICES)]
    pipe = pipeline(devices, loss_fn=lambda output, target: plain(output, target) * times, chunks=chunks)
    x, before = mini_batch(chunks), copy.deepcopy(pipe.module)
    warm_up(pipe, x)
    pipe.module.zero_grad()
    loss = pipe.step(x, x)
    gradients = {name: parameter.grad for name, parameter in pipe.module.named_parameters()}
    message = against_plain(before, plain, x, x, loss, gradients, chunks=chunks)
    return Outcome(f'a pipeline of {DEVICES} stages', pipe.trace, message, {
        'how': HOW[how].format(chunks=chunks), 'times': times, 'chunks': chunks})
