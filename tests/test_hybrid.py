"""A grid of ranks trains as the plain model does on the rows of all replicas together."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hypothesis import given
from hypothesis import strategies as st

from fewgpu import Pipeline, launch
from fewgpu.hybrid import Grid, hybrid, parallelize
from fewgpu.models import gpt, next_token_loss
from fewgpu.tensor_parallel import plain_state_dict

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


@given(*[st.integers(1, 9)] * 3, st.data())
def test_ranks_of_a_grid_are_all_different_and_found_again(replicas: int, stages: int, parts: int, data) -> None:
    grid = Grid.of(f'{replicas}x{stages}x{parts}', replicas * stages * parts)
    places = [(d, s, t) for d in range(replicas) for s in range(stages) for t in range(parts)]

    assert [grid.rank(*place) for place in places] == list(range(len(places)))
    assert [grid.place(rank) for rank in range(len(places))] == places


@pytest.mark.parametrize('strategy', ('', '4', '2x', '2x0', '2x-1', '2x2x2x2', 'axb', '2*2', 'x', 22, '²x2'))
def test_what_is_no_strategy_is_refused(strategy) -> None:
    with pytest.raises(ValueError, match='a strategy is replicas x stages'):
        Grid.of(strategy, 4)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 30))
def test_a_strategy_for_another_number_of_ranks_is_refused(replicas: int, stages: int, ranks: int) -> None:
    if replicas * stages == ranks:
        assert Grid.of(f'{replicas}X{stages}', ranks) == (replicas, stages, 1)
    else:
        with pytest.raises(ValueError, match=f'grid of {replicas * stages} ranks, and there are {ranks}'):
            Grid.of(f'{replicas}X{stages}', ranks)


def language_model() -> nn.Sequential:
    torch.manual_seed(0)
    return gpt(2, 8, 2, vocabulary=6, longest=5).double()


def tokens() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randint(0, 6, (8, 5)), torch.randint(0, 6, (8, 5))) for _ in range(2)]


def by_one_call(strategies: tuple[str, ...]) -> dict:
    """Of every strategy: losses, and the whole weights of this rank's stage."""
    found = {}
    for strategy in strategies:
        grid = Grid.of(strategy, dist.get_world_size())
        replica, _, part = grid.place(dist.get_rank())
        model = language_model()
        if (replica, part) != (0, 0):   # all start as the first do
            for parameter in model.parameters():
                nn.init.zeros_(parameter)
        torch.manual_seed(2)
        trainer = parallelize(model, strategy, loss_fn=next_token_loss, optimizer=sgd)
        losses = [trainer.step(x.chunk(grid.replicas)[replica], y.chunk(grid.replicas)[replica]).item()
                  for x, y in tokens()]
        found[strategy] = losses, plain_state_dict(trainer.module)
        trainer.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize('strategies', (('2x2', '1x2x2', '2x1x2', '4x1', '1x4', '1X4X1'), ('1x2', '2x1', '1x1x2')))
def test_one_call_trains_on_any_grid_as_sequential_sgd_does(strategies: tuple[str, ...]) -> None:
    found = launch(by_one_call, 4 if '2x2' in strategies else 2, args=(strategies,))
    plain = language_model()
    optimizer, expected = sgd(plain.parameters()), []
    for x, y in tokens():
        loss = next_token_loss(plain(x), y)
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for strategy in strategies:
        for of_rank in found:
            losses, state = of_rank[strategy]
            torch.testing.assert_close(losses, expected)
            torch.testing.assert_close(state, {key: plain.state_dict()[key] for key in state})
        assert set().union(*(of_rank[strategy][1] for of_rank in found)) == plain.state_dict().keys()


def parts_apart() -> list[str]:
    said = []
    rank = dist.get_rank()
    for seed, rows, a, b in ((rank, 8, 0, 0), (0, 8 - rank, 0, 0), (0, 8, rank, 0), (0, 8, 0, rank)):
        trainer = parallelize(language_model(), '1x1x2', loss_fn=next_token_loss, optimizer=sgd)
        x, y = tokens()[0]
        torch.manual_seed(seed)
        with pytest.raises(ValueError) as caught:
            trainer.step((x[:rows] + a) % 6, (y[:rows] + b) % 6)
        said.append(str(caught.value))
        trainer.close()
    return said


@pytest.mark.slow
def test_parts_of_a_stage_with_other_rows_numbers_or_dropout_are_refused() -> None:
    for said in launch(parts_apart, 2):
        assert '(of 8, 7 rows)' in said[1] and len(said) == 4
        assert all('the same rows' in one and 'torch.manual_seed' in one for one in said)


STAGES = {'pipedream': 2, '2bw': 2, 'pipemare': 2, 'gems': 2, 'zb-h1': 2, 'v-shape': 4, 'interleaved': 4}


def of_one_replica() -> dict:
    """Every schedule on 1x2, by its name alone: losses, and the weights that are here; those of parts at the end."""
    found, batch = {}, batches(1)
    for schedule in STAGES:
        trainer = parallelize(network(), '1x2', schedule=schedule, chunks=4, loss_fn=nn.functional.mse_loss,
                              optimizer=sgd)
        found[schedule] = [trainer.step(*rows[0]).item() for rows in batch], trainer.state_dict(), trainer.balance
        trainer.close()
    trainer = parallelize(language_model(), '1x1x2', schedule='pipedream', chunks=4, loss_fn=next_token_loss,
                          optimizer=sgd)
    torch.manual_seed(2)
    found['parts'] = [trainer.step(*rows).item() for rows in tokens()], plain_state_dict(trainer.module)
    trainer.close()
    with pytest.raises(ValueError) as caught:
        parallelize(network(), '2x1', schedule='pipedream', loss_fn=nn.functional.mse_loss, optimizer=sgd)
    found['two replicas'] = str(caught.value)
    with pytest.raises(ValueError) as caught:
        parallelize(network(), '1x2', schedule='v-shape', balance=[4, 4], loss_fn=nn.functional.mse_loss)
    return {**found, 'balance': str(caught.value)}


@pytest.mark.slow
def test_one_replica_trains_by_any_schedule_as_threads_do() -> None:
    found = launch(of_one_replica, 2)
    for schedule, stages in STAGES.items():
        threads = Pipeline(network(), found[0][schedule][2], schedule=schedule, chunks=4,
                           loss_fn=nn.functional.mse_loss, optimizer=sgd, devices=['cpu', 'cpu'])
        losses = [threads.step(*rows[0]).item() for rows in batches(1)]
        assert len(threads.balance) == stages
        for of_rank in found:
            assert of_rank[schedule][0] == losses, schedule
            for key, value in of_rank[schedule][1].items():
                assert torch.equal(value, threads.state_dict()[key]), (schedule, key)
    whole = Pipeline(language_model(), [5], schedule='pipedream', chunks=4, loss_fn=next_token_loss, optimizer=sgd)
    losses = [whole.step(*rows).item() for rows in tokens()]
    for of_rank in found:
        torch.testing.assert_close(of_rank['parts'], (losses, whole.state_dict()))
        assert 'replicas need a schedule that flushes' in of_rank['two replicas']
        assert 'give a balance of 4 stages' in of_rank['balance']


def a_replica_without_rows() -> tuple:
    trainer = parallelize(language_model(), '2x1', loss_fn=next_token_loss, optimizer=sgd)
    mine = [rows if dist.get_rank() == step % 2 else tuple(part[:0] for part in rows)
            for step, rows in enumerate(tokens())]
    return [trainer.step(*rows).item() for rows in mine], trainer.state_dict()


@pytest.mark.slow
def test_a_replica_of_a_gpt_may_have_no_rows() -> None:
    plain = language_model()
    optimizer, expected = sgd(plain.parameters()), []
    for x, y in tokens():
        loss = next_token_loss(plain(x), y)
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for found in launch(a_replica_without_rows, 2):
        torch.testing.assert_close(found, (expected, plain.state_dict()))
