"""The two halves of a backward are the whole backward, and no more work than it."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fewgpu.gate import Gate, edges, flags
from fewgpu.split_backward import SplitBackward
from tests.networks import Case, cases
from tests.pipes import Call


class Counter(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func.__name__.startswith(('mm', 'addmm'))
        return func(*args, **(kwargs or {}))


def gradients(model: nn.Module, inputs, *, split: bool) -> tuple[list, list, list[int]]:
    """Of the weights, of the input, and how many matrix products each half took."""
    gate = Gate()
    torch.manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        outputs = model(gate.enter(pytree.tree_map_only(
            torch.Tensor, lambda t: t.clone().detach().requires_grad_(t.requires_grad), inputs)))
    leaves = [leaf for leaf, needed in zip(pytree.tree_leaves(outputs), flags(outputs)) if needed]
    roots = [(edge, torch.randn_like(leaf)) for edge, leaf in
             zip([edge for edge in edges(outputs) if edge], leaves)]
    counts = []
    if split:
        halves = SplitBackward(roots, gate.anchor)
        for half in (halves.inputs, halves.weights):
            with Counter() as counter:
                half()
            counts.append(counter.products)
    elif roots:
        with Counter() as counter:
            torch.autograd.backward(*map(list, zip(*roots)))
        counts.append(counter.products)
    found = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return found, gate.take_gradients(), counts


@settings(max_examples=60)
@given(cases(chunks=1))
def test_the_halves_are_the_whole(case: Case) -> None:
    found, expected = (gradients(case.model(torch.float64), case.inputs(dtype=torch.float64),
                                 split=split)[:2] for split in (True, False))
    torch.testing.assert_close(found, expected)


@given(st.integers(1, 6), st.booleans())
def test_the_halves_take_no_product_twice(depth: int, needs_gradient: bool) -> None:
    """Each linear layer has one for its input and one for its weight (the first none for an input
    that needs no gradient)."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(depth)))
    x = torch.rand(2, 3, requires_grad=needs_gradient)
    whole = gradients(model, x, split=False)[2]
    halves = gradients(model, x, split=True)[2]
    assert whole == [sum(halves)] and halves[0] == (depth if needs_gradient else 0)


class Reused(nn.Module):
    """A weight that is used several times, directly and in a path round a use of itself."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.linear, self.scale, self.times = nn.Linear(3, 3), nn.Parameter(torch.rand(3)), times

    def forward(self, x):
        for _ in range(self.times):
            x = x + self.linear(x.tanh()) * self.scale
        return x * self.scale + self.linear.bias


@given(st.integers(1, 4))
def test_a_weight_that_is_used_again_is_counted_once(times: int) -> None:
    model, x = Reused(times).double(), torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    for found, expected in zip(gradients(model, x, split=True)[:2], gradients(model, x, split=False)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize('layers', [
    [nn.Linear(3, 3), Call(lambda x: x.detach())],
    [Call(lambda x: x.relu_()), nn.Linear(3, 3)],
    [Call(lambda x: (x, x.detach() + 1)), Call(lambda pair: pair[0] + pair[1]), nn.Linear(3, 3)],
    [Call(lambda x: torch.zeros(2, 3, dtype=torch.float64)), nn.Linear(3, 3)],
    [nn.Linear(3, 4), Call(lambda x: x.split(2, 1)), Call(lambda parts: parts[1] * 2)],
])
def test_odd_paths(layers: list) -> None:
    """Cut off, in place, round a part of the stage, not from the input at all, one output of two."""
    model, x = nn.Sequential(*layers).double(), torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    for found, expected in zip(gradients(model, x, split=True)[:2], gradients(model, x, split=False)):
        torch.testing.assert_close(found, expected)


class Keeps(torch.autograd.Function):
    """Has an attribute that the leaves of torch's graphs have, too."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.variable = x.detach()
        return x * 2

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_a_function_of_the_learner_is_no_leaf() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ Keeps.apply(self.weight)

    model, x = Scaled(3, 3).double(), torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    for found, expected in zip(gradients(model, x, split=True)[:2], gradients(model, x, split=False)):
        torch.testing.assert_close(found, expected)


def test_a_hook_that_changes_a_gradient_within_a_layer_is_refused() -> None:
    class Hooked(nn.Linear):
        def __init__(self, factor: float | None) -> None:
            super().__init__(3, 3)
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            y.register_hook(lambda gradient: self.factor and gradient * self.factor)
            return y

    x = torch.rand(2, 3, requires_grad=True)
    gradients(Hooked(None), x, split=True)   # one that only looks
    with pytest.raises(RuntimeError, match='use another schedule'):
        gradients(Hooked(2.0), x, split=True)
