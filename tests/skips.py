"""Random networks with long skips: nested, crossing, with several loads; and how they are cut.

A `SkipCase` stands where tests.reference wants a Case. Values are N x 4.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn

from fewgpu.gpipe import GPipe
from fewgpu.schedule import CHECKPOINTS
from fewgpu.skip import Load, Save
from tests.networks import evenly, virtual

WIDTH = 4
PLAIN = {
    'linear': lambda: nn.Linear(WIDTH, WIDTH),
    'tanh': nn.Tanh,
    'norm': lambda: nn.LayerNorm(WIDTH),
    'narrow': lambda: nn.Linear(2 * WIDTH, WIDTH),   # after a load that concatenates
    'dropout': lambda: nn.Dropout(0.4),
    'in place': lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
}
COMBINE = {'cat': 'cat', 'add': 'add', 'mul': torch.mul, 'beside': lambda x, skip: skip.sin() - x.cos()}
Layer = tuple[str, str, int]   # a name in PLAIN, or 'save' or one in COMBINE with its skip; loads of a save


@dataclass(frozen=True)
class SkipCase:
    """A network, how it is cut, and what it is fed."""

    layers: tuple[Layer, ...]
    balance: tuple[int, ...]
    rows: int
    chunks: int
    checkpoint: str
    skips: str = 'straight'
    frozen: int = 0                # so many first layers need no gradient
    inputs_need_gradient: bool = True
    seed: int = 0

    @property
    def micro_batches(self) -> int:
        return min(self.rows, self.chunks)

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = nn.Sequential(*map(made, self.layers)).to(dtype)
        model[:self.frozen].requires_grad_(False)
        return model

    def pipeline(self, dtype: torch.dtype = torch.float64, **options) -> GPipe:
        options = {'chunks': self.chunks, 'checkpoint': self.checkpoint, 'skips': self.skips,
                   'devices': virtual(len(self.balance)), **options}
        return GPipe(self.model(dtype), self.balance, **options)

    def inputs(self, step: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        x = torch.randn(self.rows, WIDTH, generator=generator, dtype=torch.float64)
        return x.requires_grad_(self.inputs_need_gradient)

    def loss(self, outputs: torch.Tensor) -> torch.Tensor | None:
        return outputs.sin().mean() if outputs.requires_grad else None

    def ends(self) -> dict[str, list[int]]:
        """Of each skip, the stages of its save and its loads, in the order of the layers."""
        stage_of = [stage for stage, count in enumerate(self.balance) for _ in range(count)]
        ends: dict[str, list[int]] = {}
        for stage, (_, skip, _) in zip(stage_of, self.layers):
            if skip:
                ends.setdefault(skip, []).append(stage)
        return ends


def made(layer: Layer) -> nn.Module:
    kind, skip, loads = layer
    if not skip:
        return PLAIN[kind]()
    return Save(skip, loads) if kind == 'save' else Load(skip, COMBINE[kind])


@st.composite
def networks(draw: st.DrawFn, *, plain: tuple[str, ...] = ('linear', 'tanh', 'norm', 'in place')
             ) -> tuple[Layer, ...]:
    """Some layers, at least one skip among them."""
    layers: list[Layer] = [('linear', '', 0)]
    waiting: dict[str, int] = {}   # loads to come
    length, count = draw(evenly(2, 10)), 0
    while len(layers) < length or waiting or not count:
        choices = ['save'] * 2 * (len(layers) < length) + list(waiting) * 2 + [None]
        choice = draw(st.sampled_from(choices))
        if choice == 'save' and count < 4:
            waiting[f's{count}'] = loads = draw(evenly(1, 3))
            layers.append(('save', f's{count}', loads))
            count += 1
        elif choice in waiting:
            layers.append((draw(st.sampled_from(sorted(COMBINE))), choice, 0))
            if layers[-1][0] == 'cat':
                layers.append(('narrow', '', 0))
            waiting[choice] -= 1
            waiting = {name: loads for name, loads in waiting.items() if loads}
        else:
            layers.append((draw(st.sampled_from(plain)), '', 0))
        # A layer that works in place never comes right after a save: it begins with a linear one.
    return tuple(layers)


@st.composite
def cuts(draw: st.DrawFn, layers: int, most: int = 5) -> tuple[int, ...]:
    """A balance."""
    stages = draw(evenly(1, min(most, layers)))
    edges = [0, *sorted(draw(st.permutations(range(1, layers)))[:stages - 1]), layers]
    return tuple(after - before for before, after in zip(edges, edges[1:]))


@st.composite
def skip_cases(draw: st.DrawFn, **options) -> SkipCase:
    layers = draw(networks(**options))
    return SkipCase(layers, draw(cuts(len(layers))), draw(evenly(1, 6)), draw(evenly(1, 4)),
                    draw(st.sampled_from(CHECKPOINTS)), draw(st.sampled_from(['straight', 'through'])),
                    draw(st.sampled_from([0, 0, 1, 3, len(layers) - 1])), draw(st.booleans()),
                    draw(st.integers(0, 99)))
