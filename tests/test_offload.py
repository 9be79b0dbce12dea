"""An offloaded model trains as the plain one does, bit for bit, in a device that holds little of it."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewgpu.device import Device, one_thread
from fewgpu.microbatch import scatter
from fewgpu.offload import Offloaded
from fewgpu.rng import StepSeed, Stream
from fewgpu.store import DiskStore, HostStore, StoreError
from fewgpu.tiled import TiledLinear
from tests.networks import Case, cases, seeded
from tests.reference import casting

OPTIMIZERS = {
    'adam': lambda parameters: torch.optim.Adam(parameters, lr=0.03),
    'adamw': lambda parameters: torch.optim.AdamW(parameters, lr=0.03, amsgrad=True),
    'momentum': lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    'adagrad': lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),   # has states from the start
    'plain': lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


class Loss:
    """Of any outputs; the targets only count rows."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        loss = self.case.loss(outputs)
        return torch.zeros(()) if loss is None else loss


def train_plainly(case: Case, steps: int, make: Callable, autocast: torch.dtype | None = None
                  ) -> tuple[nn.Module, list[torch.Tensor]]:
    """Micro-batch by micro-batch, with the random streams of layers and micro-batches."""
    model, losses = case.model(), []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make(trained) if trained else None
    with seeded(case.seed), one_thread():
        for step in range(steps):
            seed, parts = StepSeed(), []
            for i, part in enumerate(scatter(case.inputs(step), case.micro_batches)):
                for k, layer in enumerate(model):
                    with casting(autocast), Stream(seed, k, i, torch.device('cpu')):
                        part = layer(part)
                with casting(autocast):
                    loss = Loss(case)(part, None) * (rows(case, i) / case.rows)
                if loss.requires_grad:
                    loss.backward()
                parts.append(loss.detach())
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(torch.stack(parts).sum())
    return model, losses


def rows(case: Case, i: int) -> int:
    return case.rows // case.micro_batches + (i < case.rows % case.micro_batches)


def offloaded(case: Case, make: Callable, **options: Any) -> Offloaded:
    return Offloaded(case.model(), optimizer=make, loss_fn=Loss(case), **{'device': Device('cpu'), **options})


def train(model: Offloaded, case: Case, steps: range, autocast: torch.dtype | None = None) -> list[torch.Tensor]:
    losses = []
    for step in steps:
        with casting(autocast):
            losses.append(model.step(case.inputs(step), torch.zeros(case.rows), case.chunks))
    return losses


def assert_same(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(plain)
    wrong = [name for name in plain if not torch.equal(ours[name], plain[name])]
    assert not wrong, {name: (ours[name], plain[name]) for name in wrong}


@given(cases(inputs_need_gradient=False, used=(True,)), st.sampled_from([*OPTIMIZERS]), st.integers(0, 4),
       st.booleans(), st.booleans(), st.sampled_from([None, None, torch.bfloat16]))
def test_trains_as_the_plain_model_bit_for_bit(case, name, depth, recompute, on_disk, autocast):
    make, recompute = OPTIMIZERS[name], recompute or case.has('bounds')
    plain, losses = train_plainly(case, 3, make, autocast)
    with (DiskStore() if on_disk else HostStore()) as store:
        model = offloaded(case, make, store=store, depth=depth, recompute=recompute)
        with seeded(case.seed):
            ours = train(model, case, range(3), autocast)
        assert torch.equal(torch.stack(ours), torch.stack(losses))
        assert_same(model.state_dict(), plain.state_dict())
        plain.eval()
        with one_thread(), torch.no_grad():
            out = plain(case.inputs(9))
        assert str(model.evaluate(case.inputs(9))) == str(out)
