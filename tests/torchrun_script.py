"""A script for torchrun: every class that works on ranks, none of them told to meet. It prints what each ends with."""

import os
import sys
import time

import torch
from torch import nn

from fewgpu import DataParallel, Offloaded, Pipeline, ZeRO
from fewgpu.checkpoint import Checkpoints
from fewgpu.group import Group, PeerError
from fewgpu.hybrid import parallelize
from fewgpu.tensor_parallel import ColumnLinear, RowLinear, plain_state_dict
from fewgpu.training_state import training_state

ROWS = 8
MSE = nn.functional.mse_loss


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.rand(ROWS, 4, dtype=torch.float64), torch.rand(ROWS, 4, dtype=torch.float64)


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def own_rows() -> list[torch.Tensor]:
    return [part.chunk(2)[int(os.environ['RANK'])] for part in batch()]


def data_parallel() -> dict[str, torch.Tensor]:
    x, y = own_rows()
    model = DataParallel(network())
    MSE(model(x), y).backward()
    sgd(model.parameters()).step()
    return model.state_dict()


def zero() -> dict[str, torch.Tensor]:
    x, y = own_rows()
    model = ZeRO(network(), stage=3, optimizer=sgd)
    MSE(model(x), y).backward()
    model.step()
    return model.state_dict()


def offloaded() -> dict[str, torch.Tensor]:
    model = Offloaded(network(), optimizer=sgd, loss_fn=MSE)
    model.step(*own_rows())
    return model.state_dict()


def tensor_parallel() -> dict[str, torch.Tensor]:
    group, plain = Group(), network()
    model = nn.Sequential(ColumnLinear(plain[0], group), RowLinear(plain[1], group))
    x, y = batch()
    MSE(model(x), y).backward()
    sgd(model.parameters()).step()
    return plain_state_dict(model)


def _of_stages(pipeline: Pipeline, rows: tuple) -> dict[str, torch.Tensor]:
    pipeline.step(*rows)
    return pipeline.state_dict()   # of the stages that are here


def checkpoints() -> dict[str, torch.Tensor]:
    kept = Checkpoints(sys.argv[2])   # before there is a model
    x, y = own_rows()
    model = DataParallel(network())
    optimizer = sgd(model.parameters())
    MSE(model(x), y).backward()
    optimizer.step()
    kept.save(1, training_state(model, optimizer))
    saved = kept.latest()
    assert len(saved.parts) == 2
    return saved.whole('model')


def pipeline() -> dict[str, torch.Tensor]:
    return _of_stages(Pipeline(network(), [1, 1], chunks=2, loss_fn=MSE, optimizer=sgd), batch())


def hybrid_of_stages() -> dict[str, torch.Tensor]:
    return _of_stages(parallelize(network(), '1x2', loss_fn=MSE, optimizer=sgd), batch())


def hybrid_of_replicas() -> dict[str, torch.Tensor]:
    return _of_stages(parallelize(network(), '2x1', loss_fn=MSE, optimizer=sgd), tuple(own_rows()))


TRAINED = {function.__name__: function for function in (
    data_parallel, zero, offloaded, tensor_parallel, checkpoints, pipeline, hybrid_of_stages, hybrid_of_replicas)}


# Of the first class that a script makes, when one rank does not make it, or not at once.

LIMIT = 3.0   # seconds
FIRST = {
    'checkpoints': lambda limit: Checkpoints(sys.argv[2], time_limit=limit),
    'data_parallel': lambda limit: DataParallel(network(), time_limit=limit),
    'zero': lambda limit: ZeRO(network(), stage=1, optimizer=sgd, time_limit=limit),
    'offloaded': lambda limit: Offloaded(network(), optimizer=sgd, loss_fn=MSE, time_limit=limit),
    'pipeline': lambda limit: Pipeline(network(), [1, 1], loss_fn=MSE, optimizer=sgd, time_limit=limit),
    'hybrid': lambda limit: parallelize(network(), '1x2', loss_fn=MSE, optimizer=sgd, time_limit=limit),
    'group': lambda limit: Group(time_limit=limit),
}


def only_rank_0_makes_one() -> list[str]:
    """Each of them, one after the other: what they raise. Rank 1 ends."""
    said = []
    for name, make in FIRST.items() if os.environ['RANK'] == '0' else ():
        try:
            make(LIMIT)
            said.append(f'{name} was made')
        except PeerError as error:
            said.append(f'{error}')
    return said


def one_comes_later() -> dict[str, torch.Tensor]:
    if os.environ['RANK'] == '1':
        time.sleep(LIMIT)
    return data_parallel()


def one_dies() -> None:
    if os.environ['RANK'] == '1':
        os._exit(3)
    Checkpoints(sys.argv[2])


OTHERS = {function.__name__: function for function in (only_rank_0_makes_one, one_comes_later, one_dies)}


if __name__ == '__main__':
    name, folder = sys.argv[1:]
    torch.save({**TRAINED, **OTHERS}[name](), f'{folder}/{name}-{os.environ["RANK"]}.pt')
