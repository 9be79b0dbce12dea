"""Whole trainings of real networks, by a pipeline and by the plain rule, to be held together."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from fewgpu import Pipeline
from fewgpu.models import gpt, next_token_loss, resnet
from fewgpu.schedule import SCHEDULES
from tests import delayed

STEPS, ROWS, CHUNKS = 2, 8, 8
sgd = partial(torch.optim.SGD, lr=0.02, momentum=0.9)


def work(name: str) -> tuple[nn.Sequential, list, object]:
    """A network in float64, its mini-batches, its loss: the same in every process."""
    torch.manual_seed(0)
    if name == 'gpt':
        model = gpt(6, 16, 2, vocabulary=13, longest=8).double()
        tokens = [torch.randint(13, (ROWS, 9)) for _ in range(STEPS)]
        return model, [(t[:, :-1], t[:, 1:]) for t in tokens], next_token_loss
    model = resnet(18).double()
    data = [(torch.randn(ROWS, 1, 28, 28, dtype=torch.float64), torch.randint(10, (ROWS,)))
            for _ in range(STEPS)]
    return model, data, nn.functional.cross_entropy


def balance(name: str, stages: int) -> list[int]:
    layers = len(work(name)[0])
    return [layers // stages + (s < layers % stages) for s in range(stages)]


def stages_of(schedule: str, devices: int) -> int:
    return 2 * devices if schedule in ('interleaved', 'v-shape') else devices


def losses(name: str, schedule: str, devices: int, *, checkpoint: str = 'never',
           threads: bool = True) -> list[float]:
    """Of a pipeline, on threads, or as one rank among `devices`."""
    model, data, loss_fn = work(name)
    pipeline = Pipeline(model, balance(name, stages_of(schedule, devices)), schedule=schedule,
                        chunks=CHUNKS, loss_fn=loss_fn, optimizer=sgd, checkpoint=checkpoint,
                        devices=['cpu'] * devices if threads else None)
    found = [pipeline.step(x, y).item() for x, y in data]
    pipeline.close()
    return found


def losses_on_ranks(name: str, devices: int, checkpoint: str) -> dict[str, list[float]]:
    """What every rank runs: all schedules, one after the other."""
    torch.set_num_threads(1)
    return {schedule: losses(name, schedule, devices, checkpoint=checkpoint, threads=False)
            for schedule in SCHEDULES}


def expected(name: str, schedule: str, devices: int) -> list[float]:
    """Of the plain model, micro-batch by micro-batch; asynchronous schedules by their rule."""
    model, data, loss_fn = work(name)
    stages = stages_of(schedule, devices)
    reference = delayed.Delayed(model, balance(name, stages), sgd)
    every = {'pipedream': 1, '2bw': stages}.get(schedule, CHUNKS)
    found, updates = [], 0
    for x, y in data:
        xs, ys, sums = x.tensor_split(CHUNKS), y.tensor_split(CHUNKS), []
        for first in range(0, CHUNKS, every):
            group = range(first, first + every)
            versions = [_shifted(schedule, stages, i, every, updates) for i in group]
            sums += reference.update(versions, [xs[i] for i in group], [ys[i] for i in group], loss_fn)
        updates += CHUNKS // every
        found.append(sum(loss * len(part) for loss, part in zip(sums, ys)) / len(y))
    return found


def _shifted(schedule: str, stages: int, i: int, every: int, before: int) -> Sequence[int]:
    """Versions count on from step to step, and the pipeline drains in between."""
    rule = {'pipedream': lambda: delayed.pipedream(stages, i),
            '2bw': lambda: delayed.two_bw(stages, i, every)}.get(schedule, lambda: [0] * stages)
    return [before + version for version in rule()]
