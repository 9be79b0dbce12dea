"""Every schedule trains a ResNet-18 and a small GPT to the losses of the reference: the plain model,
micro-batch by micro-batch, with the weights that the schedule's rule prescribes."""

import pytest
import torch

from fewgpu import launch
from fewgpu.device import one_thread
from fewgpu.schedule import SCHEDULES
from tests.training import expected, losses, losses_on_ranks


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gpt', 'resnet18'])
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_on_threads(name: str, schedule: str) -> None:
    with one_thread():
        torch.testing.assert_close(losses(name, schedule, 4), expected(name, schedule, 4))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gpt', 'resnet18'])
@pytest.mark.parametrize('ranks, checkpoint', [(2, 'never'), (4, 'except_last')])
def test_on_ranks(name: str, ranks: int, checkpoint: str) -> None:
    found = launch(losses_on_ranks, ranks, args=(name, ranks, checkpoint))
    with one_thread():
        for schedule in SCHEDULES:
            wanted = expected(name, schedule, ranks)
            for rank, of_rank in enumerate(found):
                torch.testing.assert_close(of_rank[schedule], wanted,
                                           msg=lambda text: f'{schedule}, rank {rank}: {text}')
