"""A linear layer in tiles: one at a time is on the device, so the layer may be larger than it.

    Y = X W^T + b      W   [ tile 0 ]  ->  Y[:, tile 0]
                           [ tile 1 ]  ->  Y[:, tile 1]      fetch, use, drop
                           [ tile 2 ]  ->  Y[:, tile 2]

A tile is some rows of W and their biases. In the backward tile k gives its own gradient, and adds
dY[:, tile k] W[tile k] to dX, in the order of the tiles. This is the memory-centric tiling of
ZeRO-Infinity (arXiv 2104.07857, section 5.1.3; number from memory): what a layer needs at least
while it works is divided by the number of tiles.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

Tile = tuple[torch.Tensor, torch.Tensor | None]   # out / tiles x in, and out / tiles (None: no bias)


class TiledLinear(nn.Module):
    """`nn.Linear(in_features, out_features, bias)`, whose rows are cut into `tiles` parts.

    Results are those of nn.Linear within rounding. (Y and the gradients of the weights have the same
    bits where the kernel adds up in the same order for fewer rows, as for tiles of a multiple of 16
    rows on many a CPU; dX is added up tile by tile.) Tiles differ by one row at most.

    By default the tiles are the layer's own parameters. With a `source` it fetches them at each
    forward and backward, and hands their gradients there: `fewgpu.offload.Offloaded` sets one.

    Raises ValueError for fewer rows than tiles, or no tile.
    """

    def __init__(self, in_features: int, out_features: int, tiles: int, bias: bool = True,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if not 1 <= tiles <= max(1, out_features):
            raise ValueError(f'{out_features} rows are cut into 1 to {max(1, out_features)} tiles, not '
                             f'{tiles}')
        self.in_features, self.out_features = in_features, out_features
        rows = [out_features // tiles + (k < out_features % tiles) for k in range(tiles)]
        parts = [nn.Linear(in_features, count, bias, device, dtype) for count in rows]
        self.weights = nn.ParameterList(part.weight for part in parts)
        self.biases = nn.ParameterList(part.bias for part in parts) if bias else None
        self.rows = rows   #: of every tile
        self.source: Source | None = None   #: of the tiles, if not this layer

    @classmethod
    def of(cls, linear: nn.Linear, tiles: int) -> 'TiledLinear':
        """With the values of a layer (copies of them, in its dtype, where it is).

        Raises TypeError for anything but an nn.Linear, ValueError for one that does more: has a parametrization of its
        weight (weight norm, pruning), hooks, or a forward of its own, which would be lost.
        """
        _verify_plain(linear)
        weight, bias = linear.weight, linear.bias
        tiled = cls(linear.in_features, linear.out_features, tiles, bias is not None,
                    weight.device, weight.dtype)
        with torch.no_grad():
            for whole, parts in ((weight, tiled.weights), (bias, tiled.biases or ())):
                for value, part in zip(() if whole is None else whole.split(tiled.rows), parts):
                    part.copy_(value)
                    part.requires_grad_(whole.requires_grad)
        return tiled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """... x in to ... x out."""
        own = [*self.weights, *(self.biases or ())]
        return _Tiled.apply(x, self.rows, self.source or Own(self), *own)

    def extra_repr(self) -> str:
        return (f'in_features={self.in_features}, out_features={self.out_features}, '
                f'tiles={len(self.rows)}, bias={self.biases is not None}')


def _verify_plain(linear: Any) -> None:
    if not isinstance(linear, nn.Linear):
        raise TypeError(f'TiledLinear.of takes an nn.Linear, not a {type(linear).__name__}')
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    names = {name for name, _ in [*linear.named_parameters(), *linear.named_buffers()]}
    if names - {'bias'} != {'weight'} or any(hooks) or type(linear).forward is not nn.Linear.forward:
        raise ValueError(f'this {type(linear).__name__} does more than an nn.Linear (a parametrization of its weight, '
                         f'a hook, or a forward of its own), which tiles would leave out: remove that first, as by '
                         f'torch.nn.utils.parametrize.remove_parametrizations')


class Source:
    """Where tiles come from and their gradients go."""

    def tiles(self) -> Iterator[Tile]:
        """All tiles in order; each is dropped before the next one is asked for."""
        raise NotImplementedError

    def give(self, k: int, gradients: Tile) -> None:
        """The gradients of tile k, once a backward, in order."""
        raise NotImplementedError

    def given(self, parameters: int) -> list[torch.Tensor | None]:
        """What autograd is to hand on: a gradient a parameter, first the weights, then the biases."""
        return [None] * parameters


class Own(Source):
    """The parameters of the layer itself."""

    def __init__(self, layer: TiledLinear) -> None:
        self._tiles = [*zip(layer.weights, layer.biases or [None] * len(layer.rows))]
        self._counters = self._count()
        self._gradients: list[Tile] = []

    def _count(self) -> list[int]:
        return [tensor._version for tile in self._tiles for tensor in tile if tensor is not None]

    def tiles(self) -> Iterator[Tile]:
        if self._count() != self._counters:
            raise RuntimeError('a tile was changed between the forward and the backward (by an optimizer '
                               'step, say): call backward first')
        return iter(self._tiles)

    def give(self, k: int, gradients: Tile) -> None:
        self._gradients.append(gradients)

    def given(self, parameters: int) -> list[torch.Tensor | None]:
        weights, biases = zip(*self._gradients)
        self._gradients = []
        return [*weights, *biases][:parameters]


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: list[int], source: Source,
                *own: torch.Tensor) -> torch.Tensor:
        # `own` only tell autograd what is trained; their values come from the source.
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        ctx.save_for_backward(x)
        ctx.rows, ctx.source = rows, source
        out, start, tiles = None, 0, source.tiles()
        for count in rows:
            part = nn.functional.linear(x, *next(tiles))
            if out is None:
                out = part.new_empty(*part.shape[:-1], sum(rows))
            out[..., start:start + count] = part
            start += count
            del part
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, = ctx.saved_tensors
        needs_x, _, _, *needed = ctx.needs_input_grad
        flat, wide = x.flatten(0, -2) if x.dim() > 1 else x[None], gradient.reshape(-1, sum(ctx.rows))
        of_x = torch.zeros_like(flat) if needs_x else None
        start, tiles = 0, ctx.source.tiles()
        for k, count in enumerate(ctx.rows):
            weight, bias = next(tiles)
            part = wide[:, start:start + count]
            if needs_x:   # in the type of the forward, which autocast may have chosen
                of_x.addmm_(part, weight.to(part.dtype))
            if any(needed):
                ctx.source.give(k, (part.t().mm(flat).to(weight.dtype),
                                    None if bias is None else part.sum(0).to(bias.dtype)))
            start += count
            del weight, bias
        gradients = ctx.source.given(len(needed)) if any(needed) else [None for _ in needed]
        return (None if of_x is None else of_x.view(x.shape), None, None,
                *(value if needs else None for value, needs in zip(gradients, needed)))
