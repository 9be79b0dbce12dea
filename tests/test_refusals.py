"""What engines, of one process or of ranks, refuse when they are made, in a sentence that says what to give instead."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.checkpoint import Checkpoints
from fewgpu.collectives import Group
from fewgpu.data_parallel import DataParallel
from fewgpu.device import Device
from fewgpu.hybrid import hybrid
from fewgpu.limit import verify_time_limit
from fewgpu.offload import Offloaded
from fewgpu.spill import Job, Spilled, sharp, shards_that_fit
from fewgpu.transport import Mailbox
from fewgpu.transport.ranks import Ranks
from fewgpu.schedule import gpipe
from fewgpu.zero import ZeRO

mse, sgd = nn.functional.mse_loss, partial(torch.optim.SGD, lr=0.1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


def spilled(**options: Any) -> Spilled:
    return Spilled(net(), [1, 1], **{'loss_fn': mse, 'optimizer': sgd, **options})


def offloaded(**options: Any) -> Offloaded:
    return Offloaded(net(), **{'loss_fn': mse, 'optimizer': sgd, **options})


def pipeline(**options: Any) -> Pipeline:
    return Pipeline(net(), [1, 1], **{'loss_fn': mse, 'optimizer': sgd, 'devices': ['cpu'] * 2, **options})


WRONG_LIMITS = [(-1, ValueError), (0, ValueError), (9e9, ValueError), (math.inf, ValueError), (math.nan, ValueError),
                ('10', TypeError), (True, TypeError)]


@pytest.mark.parametrize('wrong, error', [*WRONG_LIMITS, (None, TypeError)])
def test_a_time_limit_that_means_nothing_is_refused(wrong: Any, error: type, tmp_path) -> None:
    for make in (verify_time_limit, lambda limit: offloaded(time_limit=limit), partial(self_made, tmp_path)):
        with pytest.raises(error, match='a time limit is'):
            make(wrong)
    if wrong is None:   # no limit, there
        return
    for make in (lambda limit: pipeline(time_limit=limit), lambda limit: Mailbox(gpipe(2, 2), time_limit=limit),
                 lambda limit: launch(net, 1, time_limit=limit)):
        with pytest.raises(error, match='a time limit is'):
            make(wrong)


def self_made(folder, limit: Any) -> None:
    Checkpoints(folder, time_limit=limit)


def on_ranks() -> None:
    for wrong, error in WRONG_LIMITS:
        for make in (Group, lambda **limit: Ranks(**limit), lambda **limit: DataParallel(net(), **limit),
                     lambda **limit: ZeRO(net(), stage=1, optimizer=sgd, **limit), offloaded,
                     lambda **limit: hybrid(net(), [1, 1], replicas=1, loss_fn=mse, **limit)):
            with pytest.raises(error, match='a time limit is'):
                make(time_limit=wrong)
    for wrong in (sgd(net().parameters()), 'adam', None):
        with pytest.raises(TypeError, match='every rank has an optimizer of its own: pass what makes it'):
            ZeRO(net(), stage=1, optimizer=wrong)
    with pytest.raises(ValueError, match="reads its own 'slices'"):
        offloaded(reading='slice')
    with pytest.raises(ValueError, match='a weighted mean does not add up'):
        offloaded(loss_fn=nn.CrossEntropyLoss(weight=torch.ones(6)))


@pytest.mark.slow
def test_ranks_refuse_them_likewise() -> None:
    launch(on_ranks, 2)


@pytest.mark.parametrize('make', [spilled, offloaded, pipeline])
def test_what_makes_no_optimizer_is_refused(make: Callable) -> None:
    for wrong in (sgd(net().parameters()), 'adam'):
        with pytest.raises(TypeError, match='has an optimizer of its own: pass what makes it'):
            make(optimizer=wrong)
    with pytest.raises(TypeError, match='returned None'):
        make(optimizer=lambda parameters: None)
    with pytest.raises(TypeError, match='LBFGS computes the loss several times'):
        make(optimizer=torch.optim.LBFGS)


@pytest.mark.parametrize('make', [spilled, offloaded])
@pytest.mark.parametrize('name', ['cpu', torch.device('cpu')])
def test_a_device_may_be_given_by_its_name(make: Callable, name: Any) -> None:
    x, y = torch.randn(2, 3, 6)
    torch.manual_seed(1)
    loss = make(device=name).step(x, y)
    torch.manual_seed(1)
    assert torch.equal(loss, make(device=Device('cpu')).step(x, y))
    with pytest.raises(TypeError, match='one device is used here'):
        make(device=['cpu'])


def test_a_pilot_run_on_a_name_asks_for_a_limit() -> None:
    with pytest.raises(ValueError, match='needs a limit'):
        shards_that_fit(net(), torch.ones(2, 6), torch.ones(2, 6), mse, 'cpu')


def test_devices_that_models_share_may_be_given_by_name() -> None:
    batches = [tuple(torch.randn(2, 3, 6)) for _ in range(2)]
    named = sharp([Job(spilled(), batches, seed=0)], ['cpu'])
    made = sharp([Job(spilled(), batches, seed=0)], [Device('cpu')])
    assert named.shared.names == made.shared.names == ('CPU 0',)
    assert [*map(torch.equal, named.losses[0], made.losses[0])] == [True, True]


@pytest.mark.parametrize('wrong, error, said', [
    (lambda: sharp([], Device('cpu')), TypeError, 'devices are a list, which all models share'),
    (lambda: sharp([], 2), TypeError, 'devices are a list'),
    (lambda: sharp([], []), ValueError, 'one or more'),
    (lambda: sharp(Job(spilled(), []), ['cpu']), TypeError, r'jobs are a list of Job\(model, batches\)'),
    (lambda: sharp([spilled()], ['cpu']), TypeError, r'jobs are a list of Job\(model, batches\)'),
    (lambda: Job(net(), []), TypeError, r'a job trains a Spilled\(module, balance, ...\), not a Sequential'),
    (lambda: Job(pipeline(), []), TypeError, 'not a Pipeline'),
    (lambda: sharp([Job(spilled(), [torch.ones(2, 6)])], ['cpu']), TypeError, 'a pair .x, y., not a Tensor'),
    (lambda: sharp([Job(spilled(), [(1, 2, 3)])], ['cpu']), TypeError, 'not a tuple of 3'),
    (lambda: offloaded(store='states'), TypeError, r"is a DiskStore\('folder'\) or a HostStore\(\), not 'states'"),
    (lambda: offloaded(states='states'), TypeError, 'a store is'),
    (lambda: offloaded(reading='slice'), ValueError, "reads its own 'slices'"),
    (lambda: offloaded(loss_fn='mse'), TypeError, 'loss_fn takes the output'),
    (lambda: offloaded(loss_fn=nn.Linear(1, 1)), TypeError, 'loss_fn has parameters'),
    (lambda: offloaded(device='cpu').step(torch.ones(2, 6), torch.ones(2, 6), chunks=0), ValueError, 'chunks is 0'),
    (lambda: offloaded(device='cpu').evaluate(torch.ones(2, 6), chunks=-1), ValueError, 'chunks is -1'),
    (lambda: Spilled(net(), 2, loss_fn=mse), TypeError, 'balance is a list'),
])
def test_what_cannot_be_used_is_refused_in_a_sentence(wrong: Callable, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        wrong()
