"""A linear layer in tiles is that layer, with one tile of it in memory at a time."""

import copy
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from fewgpu.device import Device
from fewgpu.offload import HostStore, Offloaded
from fewgpu.tiled import Source, Tile, TiledLinear
from tests.networks import seeded


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Linear, int, torch.Tensor]:
    """A layer, tiles, inputs of any number of dimensions."""
    width, rows = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    shape = draw(st.lists(st.integers(1, 4), max_size=2))
    with seeded(draw(st.integers(0, 99))):
        return nn.Linear(width, rows, draw(st.booleans())), draw(st.integers(1, rows)), torch.randn(*shape, width)


def whole(layer: TiledLinear) -> list[torch.Tensor | None]:
    return [torch.cat([part.grad for part in parts]) for parts in (layer.weights, layer.biases) if parts is not None]


@given(layers(), st.booleans(), st.sampled_from([None, torch.bfloat16]))
def test_is_the_layer(drawn, exact, autocast):
    """In whole numbers, where nothing is rounded, to the bit; else within rounding."""
    linear, tiles, x = drawn
    tolerance = {'rtol': 0.0, 'atol': 0.0} if exact else {'rtol': 5e-2, 'atol': 5e-2} if autocast else {}
    if exact:
        with torch.no_grad():
            for value in (x, *linear.parameters()):
                value.mul_(4).round_().clamp_(-8, 8)
    tiled = TiledLinear.of(linear, tiles)
    inputs, results = [x.clone().requires_grad_() for _ in range(2)], []
    for layer, each in zip((linear, tiled), inputs):
        with torch.autocast('cpu', autocast or torch.bfloat16, enabled=autocast is not None and not exact):
            out = layer(each)
        out.backward((torch.arange(out.numel()) % 5).view(out.shape).to(out.dtype))
        results.append(out)
    torch.testing.assert_close(results[1], results[0], **tolerance)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **tolerance)
    for ours, theirs in zip(whole(tiled), [parameter.grad for parameter in linear.parameters()]):
        torch.testing.assert_close(ours, theirs, **tolerance)


@given(layers(), st.sets(st.integers(0, 2)))
def test_only_what_needs_a_gradient_gets_one(drawn, frozen):
    linear, tiles, x = drawn
    linear.weight.requires_grad_(0 not in frozen)
    if linear.bias is not None:
        linear.bias.requires_grad_(1 not in frozen)
    tiled = TiledLinear.of(linear, tiles)
    x.requires_grad_(2 not in frozen)
    out = tiled(x)
    assert out.requires_grad == any(t.requires_grad for t in (x, *linear.parameters()))
    if out.requires_grad:
        out.sum().backward()
    assert (x.grad is not None) == x.requires_grad
    assert all((p.grad is not None) == p.requires_grad for p in tiled.parameters())


class Fetched(Source):
    """Makes a copy of each tile on the device."""

    def __init__(self, layer: TiledLinear) -> None:
        self.layer, self.taken = layer, {}

    def tiles(self) -> Iterator[Tile]:
        for weight in self.layer.weights:
            yield weight.detach().clone(), None

    def give(self, k: int, gradients: Tile) -> None:
        self.taken[k] = gradients[0].shape


@given(st.integers(1, 8), st.integers(1, 4))
def test_holds_one_tile_and_the_result(tiles, rows):
    layer = TiledLinear(64, 320, tiles, bias=False)
    layer.source = Fetched(layer)
    device, x = Device('cpu'), torch.randn(rows, 64)
    device.meter()
    tile, result = -(-320 // tiles) * 64 * 4, rows * 320 * 4
    with device.active():
        out = layer(x)
        assert device.ledger.peak <= tile + result + result / tiles + 64
        assert device.ledger.peak >= tile + result
        device.ledger.reset_peak()
        out.sum().backward()
    assert device.ledger.peak <= 2 * tile + 3 * result + 64 * rows   # a tile, and its gradient
    assert [*layer.source.taken.values()] == [weight.shape for weight in layer.weights]
    assert all(weight.grad is None for weight in layer.weights)


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def more_than_linear() -> dict[str, nn.Module]:
    linear = partial(nn.Linear, 6, 6)
    hooked, before = linear(), linear()
    hooked.register_forward_hook(lambda layer, inputs, output: 2 * output)
    before.register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],))
    return {'weight norm': nn.utils.parametrizations.weight_norm(linear()),
            'spectral norm': nn.utils.parametrizations.spectral_norm(linear()),
            'orthogonal': nn.utils.parametrizations.orthogonal(linear()),
            'pruned': prune.l1_unstructured(linear(), 'weight', 0.5),
            'a forward of its own': Doubled(6, 6), 'a hook': hooked, 'a hook before': before}


def test_what_cannot_be_is_refused():
    for tiles in (0, 4):
        with pytest.raises(ValueError, match='1 to 3 tiles'):
            TiledLinear(2, 3, tiles)
    for wrong in (nn.Conv2d(3, 3, 1), nn.Bilinear(2, 2, 2), None):
        with pytest.raises(TypeError, match='takes an nn.Linear, not a'):
            TiledLinear.of(wrong, 2)
    for wrong in more_than_linear().values():
        with pytest.raises(ValueError, match='does more than an nn.Linear'):
            TiledLinear.of(wrong, 2)
    layer = TiledLinear(2, 3, 2)
    out = copy.deepcopy(layer)(torch.ones(1, 2))
    out.sum().backward()   # another layer's
    out = layer(torch.ones(1, 2))
    with torch.no_grad():
        layer.weights[0].add_(1)
    with pytest.raises(RuntimeError, match='was changed between'):
        out.sum().backward()


class Breaking(nn.Module):
    """Raises in its `run`-th forward with a graph from now on."""

    run = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.run -= torch.is_grad_enabled()
        if self.run == 0 and torch.is_grad_enabled():
            raise ZeroDivisionError
        return x


@pytest.mark.parametrize('run', (1, 2))
def test_a_step_that_fails_leaves_no_gradients_of_tiles_to_the_next_one(run: int) -> None:
    def trained(fails: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(breaking := Breaking(), TiledLinear(4, 4, 2)), nn.Linear(4, 1))
        with HostStore() as store:
            offloaded = Offloaded(model, optimizer=partial(torch.optim.SGD, lr=0.1), loss_fn=nn.functional.mse_loss,
                                  device=Device('cpu'), store=store)
            batch = torch.randn(4, 4), torch.randn(4, 1)
            if fails:
                breaking.run = run
                with pytest.raises(ZeroDivisionError):
                    offloaded.step(*batch, chunks=2)
                breaking.run = -1
            offloaded.step(*batch, chunks=2)
            return offloaded.state_dict()

    expected, found = trained(False), trained(True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
