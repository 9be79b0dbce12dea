"""Tensor parallelism: one layer on several ranks, each of which holds a part of its weights.

A linear layer is cut by its outputs (columns of W^T) or by its inputs (rows); one after the other they
need no exchange in between, which is how an MLP and an attention are cut:

                  ┌─► x A_0 ─► GELU ─► h_0 B_0 ─┐
    x ──► f ──────┤         rank 0              ├─ g (sum) ──► y       f: forward nothing, backward all-reduce
                  └─► x A_1 ─► GELU ─► h_1 B_1 ─┘                      g: forward all-reduce, backward nothing
                            rank 1

Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053); of a transformer block every micro-batch moves
8 b s h (t-1)/t elements a rank (arXiv 2104.04473, section 3.2): an all-reduce of b s h elements, of
which a rank sends 2 (t-1)/t, twice in the forward and twice in the backward.

Every rank of the group is given the same inputs (a few bytes a step tell whether it is so, see `fewgpu.alike`) and has
the same outputs; dropout behind `g` draws the same masks on all ranks if their generators are at the same point (so
does a Pipeline's). All make a layer from the same plain one, and start with the weights of the group's first rank.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fewgpu.alike import take_first, verify_given_same
from fewgpu.collectives import Group, all_gather, all_reduce


class _CopyToRanks(torch.autograd.Function):
    """f of the picture above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        all_reduce(gradient, ctx.group)
        return gradient, None


class _SumOverRanks(torch.autograd.Function):
    """g of the picture above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        all_reduce(x, group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherLast(torch.autograd.Function):
    """The parts of all ranks, side by side along the last dimension; backward takes the own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size)]
        parts[group.rank].copy_(x)
        all_gather(parts, group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.chunk(ctx.group.size, dim=-1)[ctx.group.rank].contiguous(), None


def copy_to_ranks(x: Tensor, group: Group) -> Tensor:
    """f: x for every rank's part of a layer; backward adds up what comes back from all of them."""
    return _CopyToRanks.apply(x, group)


def sum_over_ranks(x: Tensor, group: Group) -> Tensor:
    """g: the sum of every rank's x; backward passes the gradient on."""
    return _SumOverRanks.apply(x, group)


def gather_last(x: Tensor, group: Group) -> Tensor:
    """... x n on every rank -> ... x (size n): what `ColumnLinear` cut, put together again."""
    return _GatherLast.apply(x, group)


class Cut(NamedTuple):
    """How a plain parameter is shared out: along `dim`, after cutting it into so many equal `sections`, each of
    which is shared out (queries, keys and values, one above the other in one weight, are 3)."""

    dim: int = 0
    sections: int = 1

    def own(self, whole: Tensor, group: Group) -> nn.Parameter:
        """This rank's share, a parameter with memory of its own.

        Raises ValueError if it cannot be shared out evenly.
        """
        if whole.shape[self.dim] % (group.size * self.sections):
            raise ValueError(f'{whole.shape[self.dim] // self.sections} cannot be shared out to {group.size} ranks '
                             f'evenly (of a parameter of shape {tuple(whole.shape)}): choose a number of ranks that '
                             f'divides it')
        parts = [section.chunk(group.size, self.dim)[group.rank]
                 for section in whole.detach().chunk(self.sections, self.dim)]
        return nn.Parameter(torch.cat(parts, self.dim).contiguous(), requires_grad=whole.requires_grad)

    def whole(self, own: Tensor, group: Group) -> Tensor:
        """The plain tensor, from every rank's share; all ranks call it."""
        shares = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(group.size)]
        shares[group.rank].copy_(own.detach())
        all_gather(shares, group)
        sections = zip(*(share.chunk(self.sections, self.dim) for share in shares))
        return torch.cat([part for section in sections for part in section], self.dim)


class Sharded(nn.Module):
    """A layer of which this rank holds a part. `cuts` tells which of its parameters are cut, and how; the
    others are whole, and the same on all ranks."""

    def __init__(self, group: Group, **cuts: Cut) -> None:
        super().__init__()
        self.group, self.cuts = group, cuts
        self.notes = Group(group.process_group, group.time_limit)   # a few numbers beside, which `group` does not count
        self.verifies = True   #: are inputs looked at, whether they are the same on all ranks? (Once a step is enough.)

    def take(self, name: str, whole: Tensor | None) -> None:
        """Make this rank's share of a plain parameter (or None) the parameter of that name. It is that of the group's
        first rank; all ranks call it.

        Raises ValueError, on all of them, if they have other ones, or if it cannot be shared out evenly.
        """
        firsts = None if whole is None else nn.Parameter(whole.detach().clone(), requires_grad=whole.requires_grad)
        take_first([] if firsts is None else [(name, firsts)], self.notes)
        self.register_parameter(name, self.cuts[name].own(firsts, self.group)
                                if firsts is not None and name in self.cuts else firsts)

    def verify(self, what: str, given: Tensor) -> None:
        """Raises ValueError, on all ranks, if they were given other ones (if that is looked at here)."""
        if self.verifies:
            verify_given_same(what, given, self.notes)


class ColumnLinear(Sharded):
    """A linear layer cut by its outputs: ... x in -> ... x out/size (this rank's), or all with `gather`.

    Usage::

        group = Group()   # all ranks, which are given the same x
        mlp = nn.Sequential(ColumnLinear(nn.Linear(8, 32), group), nn.GELU(), RowLinear(nn.Linear(32, 8), group))
        loss_fn(mlp(x), y).backward()

    Raises ValueError, on all ranks, if they are given inputs of other shapes, or made from other linear layers.
    With `sections` outputs are that many groups, each of which is cut: see `Cut`.
    """

    def __init__(self, linear: nn.Linear, group: Group, *, sections: int = 1, gather: bool = False) -> None:
        super().__init__(group, weight=Cut(0, sections), bias=Cut(0, sections))
        self.gather = gather
        self.take('weight', linear.weight)
        self.take('bias', linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        self.verify('inputs', x)
        y = nn.functional.linear(copy_to_ranks(x, self.group), self.weight, self.bias)
        return gather_last(y, self.group) if self.gather else y


class RowLinear(Sharded):
    """A linear layer cut by its inputs: ... x in/size (this rank's) -> ... x out, the same on all ranks."""

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        super().__init__(group, weight=Cut(1))
        self.take('weight', linear.weight)
        self.take('bias', linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = sum_over_ranks(nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias   # once, not once a rank


def plain_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The state_dict of the plain module, whole; all ranks of the group call it."""
    state = module.state_dict()
    for prefix, part in module.named_modules():
        for name, cut in part.cuts.items() if isinstance(part, Sharded) else ():
            key = f'{prefix}.{name}' if prefix else name
            if key in state:   # a bias that is None is not
                state[key] = cut.whole(state[key], part.group)
    return state


def load_plain_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Take this rank's parts out of a plain module's state_dict; raises as torch does if one is missing."""
    module.load_state_dict(own_state_dict(module, state))


def own_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A plain module's state_dict, or a part of it, with this rank's share of what is cut."""
    own = dict(state)
    for prefix, part in module.named_modules():
        for name, cut in part.cuts.items() if isinstance(part, Sharded) else ():
            key = f'{prefix}.{name}' if prefix else name
            if key in own:
                own[key] = cut.own(own[key], part.group).detach()
    return own
