"""Any network, with masks, integers, in-place layers, batch norm and dropout, trains by any schedule as
it does in GPipe, whose results other tests hold against the plain model."""

import torch
from hypothesis import assume, given, settings, strategies as st
from torch.utils import _pytree as pytree

from fewgpu import Pipeline
from fewgpu.microbatch import sizes
from fewgpu.schedule import CHECKPOINTS
from tests.networks import Case, cases, seeded, virtual


def slices(tree, rows: list[int]) -> list:
    """The micro-batches of a mini-batch of outputs; what has no rows belongs to all."""
    flat, spec = pytree.tree_flatten(tree)
    parts = [leaf.split(rows) if isinstance(leaf, torch.Tensor) and leaf.dim() else [leaf] * len(rows)
             for leaf in flat]
    return [pytree.tree_unflatten(list(part), spec) for part in zip(*parts)]


def in_gpipe(case: Case) -> tuple | None:
    """Loss, gradients and buffers after one step; None if nothing can be trained."""
    model = case.pipeline()
    rows = sizes(case.rows, case.chunks)
    with seeded(1):
        parts = [case.loss(part) for part in slices(model(case.inputs()), rows)]
        if None in parts:
            return None
        loss = sum(part * (count / case.rows) for part, count in zip(parts, rows))
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()], dict(model.named_buffers())


@settings(max_examples=60)
@given(cases(), st.sampled_from(['gpipe', '1f1b', 'zb-h1', 'zb-h2']), st.sampled_from(CHECKPOINTS))
def test_any_network_trains_as_in_gpipe(case: Case, schedule: str, checkpoint: str) -> None:
    expected = in_gpipe(case)
    assume(expected is not None)
    pipeline = Pipeline(case.model(), case.balance, schedule=schedule, chunks=case.chunks,
                        checkpoint=checkpoint, devices=virtual(len(case.balance)),
                        loss_fn=lambda outputs, _: case.loss(outputs))
    with seeded(1):
        loss = pipeline.step(case.inputs(), torch.zeros(case.rows))
    found = loss, [p.grad for p in pipeline.parameters()], dict(pipeline.module.named_buffers())
    torch.testing.assert_close(found, expected)
