"""What a pipeline is compared with: the plain model, run one micro-batch after another.

The arithmetic is that of the pipeline, so results are bit-equal: the same micro-batches, the same
random streams, one core, and the gradients of the micro-batches added in the same order, the last
first. Nothing here is shared with the pipeline but the streams: no device, stage, message, schedule
or recompute.

A law is a scenario, a function of an engine, that gives the same with `Pipelined` and with `Plain`
(see `compare`). An engine makes runs: run = engine(inputs), then run.outputs; and after the
backward of a loss, run.backward().
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.device import one_thread
from fewgpu.rng import StepSeed, Stream
from tests.networks import Case, is_float, seeded


class Pipelined:
    """The engine under test."""

    def __init__(self, case: Case, model: nn.Module, autocast: torch.dtype | None = None) -> None:
        self.case, self.model, self.autocast = case, model, autocast

    def __call__(self, inputs: Any) -> 'PipelinedRun':
        with casting(self.autocast):
            return PipelinedRun(self.model(inputs))


class PipelinedRun:
    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def backward(self, *, retain_graph: bool = False) -> None:
        """Nothing: the backward of the loss did it."""


class Plain(Pipelined):
    """The reference."""

    def __call__(self, inputs: Any) -> 'PlainRun':
        return PlainRun(self, inputs)


class PlainRun:
    """One forward of the plain model, cut into micro-batches, and its backward."""

    def __init__(self, engine: Plain, inputs: Any) -> None:
        self._engine, self._inputs = engine, pytree.tree_leaves(inputs)
        self._seed = StepSeed()
        with one_thread():
            self._micro_batches = [self._run(i, part) for i, part in enumerate(self._cut(inputs))]
        with torch.no_grad():
            self.outputs = pytree.tree_map(_join, *self._micro_batches)

    def _cut(self, inputs: Any) -> list[Any]:
        count = self._engine.case.micro_batches
        leaves, spec = pytree.tree_flatten(inputs)
        columns = [leaf.tensor_split(count) if isinstance(leaf, torch.Tensor) and leaf.dim()
                   else [leaf] * count for leaf in leaves]
        # Copies: a first layer may work in place, and alignment may choose another kernel.
        return [pytree.tree_map_only(torch.Tensor, torch.clone, pytree.tree_unflatten(row, spec))
                for row in zip(*columns)]

    def _run(self, i: int, value: Any) -> Any:
        layers = iter(self._engine.model)
        for stage, count in enumerate(self._engine.case.balance):
            with casting(self._engine.autocast), Stream(self._seed, stage, i, torch.device('cpu')):
                for _ in range(count):
                    value = next(layers)(value)
        return value

    def backward(self, *, retain_graph: bool = False) -> None:
        """From the gradients of `outputs`, which are leaves, to those of parameters and inputs;
        they are added to what is there."""
        leaves = [leaf for leaf in [*self._engine.model.parameters(), *self._inputs]
                  if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        before = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        with one_thread():
            for i, part in reversed([*enumerate(self._micro_batches)]):
                self._backward(i, part, retain_graph)
        for leaf, gradient in zip(leaves, before):
            if gradient is not None:
                leaf.grad = gradient if leaf.grad is None else gradient + leaf.grad
        for leaf in pytree.tree_leaves(self.outputs):
            if is_float(leaf):
                leaf.grad = None

    def _backward(self, i: int, part: Any, retain_graph: bool) -> None:
        pairs = []
        for leaf, whole in zip(pytree.tree_leaves(part), pytree.tree_leaves(self.outputs)):
            if is_float(whole) and whole.grad is not None:
                count = self._engine.case.micro_batches
                pairs.append((leaf, whole.grad.tensor_split(count)[i] if leaf.dim()
                              else whole.grad))
        if pairs:
            torch.autograd.backward(*zip(*pairs), retain_graph=retain_graph)


def compare(case: Case, scenario: Callable, *, dtype: torch.dtype = torch.float32,
            autocast: torch.dtype | None = None, **options: Any) -> list[str]:
    """Where the scenario's results differ between the pipeline and the plain model.

    The state of both models at the end, and of the caller's random generator, belong to the result.
    `options` are of the pipeline.
    """
    results = []
    for engine in (Pipelined(case, case.pipeline(dtype, **options), autocast),
                   Plain(case, case.model(dtype), autocast)):
        with seeded(case.seed):
            result = scenario(engine)
            results.append((result, state(engine.model), torch.get_rng_state()))
    return differences(*results)


def casting(dtype: torch.dtype | None) -> contextlib.AbstractContextManager:
    # Without the cache of casted weights, as in a pipeline: with it, the gradients of a weight that
    # a layer uses twice are added in the lower precision.
    return (torch.autocast('cpu', dtype, cache_enabled=False) if dtype
            else contextlib.nullcontext())


def _join(*parts: Any) -> Any:
    first = parts[0]
    if not isinstance(first, torch.Tensor):
        return first
    return (torch.cat(parts) if first.dim() else first.detach()).requires_grad_(first.requires_grad)


def seen(value: Any) -> Any:
    """A value as it is now: its tensors without graph, and whether they need a gradient."""
    return pytree.tree_map_only(torch.Tensor, lambda t: (t.detach().clone(), t.requires_grad),
                                value)


def gradients(model: nn.Module, inputs: Any = None) -> dict[str, Any]:
    """The gradients of parameters, by name, and of the inputs, by place, as copies."""
    of_inputs = [leaf.grad if isinstance(leaf, torch.Tensor) else None
                 for leaf in pytree.tree_leaves(inputs)]
    return pytree.tree_map_only(torch.Tensor, torch.clone, {
        'parameters': {name: parameter.grad for name, parameter in model.named_parameters()},
        'inputs': of_inputs})


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers now, as copies."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def differences(one: Any, other: Any, tolerance: float = 0.0) -> list[str]:
    """The places in which two nestings of tensors differ; none if they are equal.

    Tensors must agree in dtype, shape and every bit; or, with a `tolerance`, to that share of the
    largest magnitude in the tensor (of 1 if that is larger).
    """
    ones, spec = pytree.tree_flatten_with_path(one)
    others, other_spec = pytree.tree_flatten(other)
    if spec != other_spec:
        return [f'structure: {spec} against {other_spec}']
    return [f'{pytree.keystr(path)}: {a} against {b}'
            for (path, a), b in zip(ones, others) if not _same(a, b, tolerance)]


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b) and a == b
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if not (tolerance and is_float(a) and a.numel()):
        return torch.equal(a, b)
    return bool((a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item()))
