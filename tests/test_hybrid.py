"""A grid of ranks trains as the plain model does on the rows of all replicas together."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu import launch
from fewgpu.hybrid import hybrid

SCHEDULES = ('gpipe', '1f1b', 'interleaved', 'zb-h1')
ROWS = {2: [(5, 4), (4, 6)], 1: [(7,), (4,)]}   # by replicas: of each replica, in every step


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(3, 3), nn.Tanh()))).double()


def batches(replicas: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(1)
    return [[tuple(torch.randn(2, rows, 3, dtype=torch.float64)) for rows in step]
            for step in ROWS[replicas]]


def sgd(parameters) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def on_the_grid(replicas: int) -> dict:
    """Of every schedule: losses and weights; the loss of the first mini-batch after training."""
    found = {}
    size = dist.get_world_size() // replicas
    mine = [step[dist.get_rank() // size] for step in batches(replicas)]
    for schedule in SCHEDULES:
        model = network()
        if dist.get_rank() >= size:   # all start as replica 0 does
            nn.init.zeros_(model[0].weight)
        stages = 2 * size if schedule == 'interleaved' else size
        balance = [8 // stages] * stages
        pipeline = hybrid(model, balance, replicas=replicas, schedule=schedule, chunks=4,
                          loss_fn=nn.functional.mse_loss, optimizer=sgd)
        losses = [pipeline.step(x, y).item() for x, y in mine]
        found[schedule] = losses, pipeline.state_dict()
        found['evaluated'] = pipeline.eval_step(*mine[0]).item()
        pipeline.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize('ranks, replicas', [(4, 2), (2, 2), (2, 1)])
def test_a_grid_trains_as_the_plain_model_on_all_rows(ranks: int, replicas: int) -> None:
    found = launch(on_the_grid, ranks, args=(replicas,))
    plain = network()
    optimizer, expected = sgd(plain.parameters()), []
    for step in batches(replicas):
        x, y = (torch.cat(parts) for parts in zip(*step))
        loss = nn.functional.mse_loss(plain(x), y)
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = plain.state_dict()
    x, y = (torch.cat(parts) for parts in zip(*batches(replicas)[0]))
    for of_rank in found:
        torch.testing.assert_close(of_rank['evaluated'], nn.functional.mse_loss(plain(x), y).item())
        for schedule in SCHEDULES:
            losses, state = of_rank[schedule]
            torch.testing.assert_close(losses, expected)
            torch.testing.assert_close(state, {key: weights[key] for key in state})
    for schedule in SCHEDULES:   # all of it is held somewhere
        assert set().union(*(of_rank[schedule][1] for of_rank in found)) == weights.keys()


def uneven() -> str:
    with pytest.raises(ValueError) as caught:
        hybrid(network(), [4, 4], replicas=3, chunks=2, loss_fn=nn.functional.mse_loss)
    return str(caught.value)


@pytest.mark.slow
def test_ranks_that_cannot_be_shared_out_are_refused() -> None:
    assert set(launch(uneven, 2)) == {'2 ranks cannot be shared out to 3 pipelines evenly: start a '
                                      'multiple of 3 ranks'}
