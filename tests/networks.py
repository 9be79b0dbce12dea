"""Random small networks for the property tests, drawn by hypothesis, and how they are cut and fed.

A `Case` is one example; it is printed in full when a law fails, and builds the same model and the
same mini-batches every time. `cases()` draws one.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.device import Device
from fewgpu.gpipe import GPipe
from tests.layers import ENDS, IN_PLACE, KEPT, LAYERS, PASSED_ON, batch

CHECKPOINTS = ('always', 'except_last', 'never')


@dataclass(frozen=True)
class Case:
    """A network, how it is cut, and what it is fed."""

    start: str                             # kind of the input, see tests.layers
    layers: tuple[str, ...]                # names in tests.layers.LAYERS
    balance: tuple[int, ...]
    rows: int
    chunks: int
    checkpoint: str = 'except_last'
    frozen: tuple[int, ...] = ()           # layers whose parameters need no gradient
    inputs_need_gradient: bool = True      # the floating-point ones
    used: tuple[bool, ...] = (True,)       # does the loss use the first, second, ... of the outputs
                                           # that need a gradient (if there are several)
    seed: int = 0

    @property
    def micro_batches(self) -> int:
        return min(self.rows, self.chunks)

    def has(self, trait: str) -> bool:
        return any(LAYERS[name].trait == trait for name in self.layers)

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Sequential:
        """The plain model, in training mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = nn.Sequential(*(LAYERS[name].make() for name in self.layers)).to(dtype)
        for k in self.frozen:
            model[k].requires_grad_(False)
        return model

    def pipeline(self, dtype: torch.dtype = torch.float32, **options: Any) -> GPipe:
        """The same model in a pipeline of virtual devices."""
        options = {'chunks': self.chunks, 'checkpoint': self.checkpoint,
                   'devices': virtual(len(self.balance)), **options}
        return GPipe(self.model(dtype), self.balance, **options)

    def inputs(self, step: int = 0, dtype: torch.dtype = torch.float32) -> Any:
        """A mini-batch, another one for every step."""
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        inputs = batch(self.start, self.rows, generator, dtype)
        return pytree.tree_map_only(torch.Tensor, self._needing_gradient, inputs)

    def _needing_gradient(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().requires_grad_(self.inputs_need_gradient and is_float(tensor))

    def loss(self, outputs: Any) -> torch.Tensor | None:
        """Of the outputs that are used; None if none of them needs a gradient."""
        leaves = [leaf for leaf in pytree.tree_leaves(outputs)
                  if is_float(leaf) and leaf.requires_grad]
        terms = [leaf.to(torch.promote_types(leaf.dtype, torch.float32)).sin().mean() * (k + 1)
                 for k, leaf in enumerate(leaves)
                 if len(leaves) == 1 or self.used[k % len(self.used)]]
        return sum(terms) if terms else None


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def virtual(count: int) -> list[Device]:
    return [Device('cpu', index=j) for j in range(count)]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the caller's generator starts from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def evenly(lowest: int, highest: int) -> st.SearchStrategy[int]:
    """Any of these numbers, the large ones as often as the small (st.integers prefers those)."""
    return st.sampled_from(range(lowest, highest + 1))


@st.composite
def cases(draw: st.DrawFn, *, start: str | None = None, first: tuple[str, ...] = (),
          without: tuple[str, ...] = (), **fixed: Any) -> Case:
    """Any network, cut anyhow, with any number of rows.

    It begins with the layers `first`, and has none with a trait in `without`; `fixed` are fields of
    the Case.
    """
    rows = fixed.get('rows') or draw(evenly(1, 9))
    chunks = fixed.get('chunks') or draw(evenly(1, 6))
    kind = start = start or draw(st.sampled_from(['rows', 'image', 'sequence', 'ids', 'nest']))
    layers: list[str] = []
    for name in [*first, *[None] * draw(evenly(0 if first else 2, 8))]:
        name = name or draw(st.sampled_from([
            name for name in _fitting(kind, rows // min(rows, chunks), without)
            if not (_result_is_kept(layers) and name in IN_PLACE)]))
        layers.append(name)
        kind = LAYERS[name].gives
        if kind == 'end':
            break
    if kind in ENDS:
        layers.append(ENDS[kind])
    stages = draw(evenly(1, min(4, len(layers))))
    cuts = sorted(draw(st.permutations(range(1, len(layers))))[:stages - 1])
    edges = [0, *cuts, len(layers)]
    frozen = draw(st.one_of(st.just(set()), st.sets(st.integers(0, len(layers) - 1)),
                            st.integers(0, len(layers) - 1).map(lambda n: set(range(n)))))
    return Case(**{
        'start': start, 'layers': tuple(layers), 'rows': rows, 'chunks': chunks,
        'balance': tuple(after - before for before, after in zip(edges, edges[1:])),
        'checkpoint': draw(st.sampled_from(CHECKPOINTS)),
        'frozen': tuple(sorted(frozen)), 'inputs_need_gradient': draw(st.booleans()),
        'used': draw(st.sampled_from([(True,), (True, False), (False, True)])),
        'seed': draw(st.integers(0, 999)), **fixed})


def _fitting(kind: str, smallest: int, without: tuple[str, ...]) -> list[str]:
    """Layers that take `kind`. Batch norm wants two values of each feature in a micro-batch."""
    return [name for name, layer in LAYERS.items()
            if layer.takes == kind and layer.trait not in without
            and (name != 'batch norm of rows' or smallest > 1)]


def _result_is_kept(layers: list[str]) -> bool:
    """Would it be an error, in the plain model too, to change the result in place?"""
    own = [name for name in layers if name not in PASSED_ON]
    return bool(own) and own[-1] in KEPT
