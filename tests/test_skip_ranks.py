"""Long skips between ranks: any schedule, either way, trains as the plain model does."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.device import one_thread
from fewgpu.microbatch import sizes
from fewgpu.models import unet
from tests.skips import SkipCase
from tests.test_skip import mse, plain_gradients

LAYERS = (('linear', '', 0), ('save', 'outer', 2), ('in place', '', 0), ('save', 'inner', 1), ('norm', '', 0),
          ('add', 'outer', 0), ('linear', '', 0), ('cat', 'inner', 0), ('narrow', '', 0), ('mul', 'outer', 0),
          ('linear', '', 0))
BALANCES = {'gpipe': (5, 6), '1f1b': (4, 7), 'zb-h1': (3, 8), 'interleaved': (2, 3, 2, 4),
            'v-shape': (2, 2, 3, 4)}
CASES = [(schedule, balance, way, checkpoint) for schedule, balance in BALANCES.items()
         for way, checkpoint in (('straight', 'never'), ('through', 'always'))]


def case(balance: tuple[int, ...], checkpoint: str) -> SkipCase:
    return SkipCase(LAYERS, balance, rows=7, chunks=4, checkpoint=checkpoint, seed=3)


def trained() -> list[tuple[torch.Tensor, torch.Tensor, dict]]:
    """On every rank, of every case: loss, evaluation and the gradients of its own stages."""
    torch.set_num_threads(1)
    results = []
    for schedule, balance, way, checkpoint in CASES:
        this = case(balance, checkpoint)
        x, y = this.inputs().detach(), this.inputs(1).detach()
        pipeline = Pipeline(this.model(), balance, schedule=schedule, chunks=4, loss_fn=mse, skips=way,
                            checkpoint=checkpoint)
        results.append((pipeline.step(x, y), pipeline.eval_step(x, y),
                        {name: p.grad for name, p in pipeline.module.named_parameters()}))
        pipeline.close()
    model, x, y = unet_and_batch()
    pipeline = Pipeline(model, [4, 5, 5, 5], schedule='v-shape', loss_fn=nn.functional.cross_entropy)
    loss = pipeline.step(x, y)
    gradients = {name: p.grad for name, p in pipeline.module.named_parameters()}
    return [*results, (loss, pipeline.eval_step(x, y), gradients)]


def unet_and_batch() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.rand(2, 1, 16, 16, dtype=torch.float64), torch.randint(2, (2, 16, 16))
    return unet(depth=2, width=2).double(), x, y


def test_ranks_train_as_the_plain_model_to_the_bit() -> None:
    ranks = launch(trained)
    for number, (schedule, balance, way, checkpoint) in enumerate(CASES):
        this = case(balance, checkpoint)
        x, y = this.inputs().detach(), this.inputs(1).detach()
        loss, gradients = plain_gradients(this, sizes(7, 4), x, y, descending=schedule == 'gpipe')
        names = [name for name, _ in this.model().named_parameters()]
        found: dict[str, torch.Tensor] = {}
        for of_rank in ranks:
            of_step, of_evaluation, own = of_rank[number]
            torch.testing.assert_close((of_step, of_evaluation), (loss, loss))
            found |= own
        assert sorted(found) == sorted(names), schedule
        assert all(torch.equal(found[name], g) for name, g in zip(names, gradients)), (schedule, way)
    model, x, y = unet_and_batch()   # folded over the ranks
    with one_thread():
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    torch.testing.assert_close([of_rank[-1][0] for of_rank in ranks], [loss.detach()] * len(ranks))
    found = {name: gradient for of_rank in ranks for name, gradient in of_rank[-1][2].items()}
    assert all(torch.equal(found[name], p.grad) for name, p in model.named_parameters())


def with_other_routes() -> None:
    way = ['straight', 'through', 'through'][dist.get_rank()]
    this = SkipCase((('save', 's', 1), ('linear', '', 0), ('add', 's', 0)), (1, 1, 1), 2, 1, 'never')
    pipeline = Pipeline(this.model(), this.balance, loss_fn=mse, skips=way, time_limit=20.0)
    pipeline.step(this.inputs().detach(), this.inputs(1).detach())


@pytest.mark.slow
def test_ranks_that_route_them_differently_are_told() -> None:
    with pytest.raises(Exception, match='runs 1f1b with 3 stages'):
        launch(with_other_routes, 3)
