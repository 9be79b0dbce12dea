"""What the grader of exercise 04 puts to the test: small models, whose layers know their number, on pretended GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import torch
from torch import nn

from fewgpu.workshop.practice.gpus import Move, PretendGpus

GPUS = 4


@dataclass(frozen=True)
class Case:
    """A model in stages of so many layers, each on the GPU of that number, and a mini-batch."""

    balance: tuple[int, ...]
    gpus: tuple[int, ...]
    rows: int
    seed: int

    @property
    def devices(self) -> list[torch.device]:
        return [torch.device('cuda', index) for index in self.gpus]

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """The first layer of every stage, and the first of the next."""
        ends = list(accumulate(self.balance))
        return list(zip([0, *ends], ends))

    def model(self) -> nn.Sequential:
        """Linear, batch norm, tanh and so on, in float64, each layer with its `number`; widths differ."""
        torch.manual_seed(self.seed)
        random = Random(self.seed)
        widths, layers = random.sample(range(2, 17), sum(self.balance) // 3 + 2), []
        for number in range(sum(self.balance)):
            place = number // 3
            layer = [lambda: nn.Linear(widths[place], widths[place + 1]), lambda: nn.BatchNorm1d(widths[place + 1]),
                     nn.Tanh][number % 3]()
            layers.append(layer.double())
            layer.number, layer.originals = number, list(layer.parameters())
        return nn.Sequential(*layers)

    def batch(self, model: nn.Sequential) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for the model, and a target for each."""
        generator = torch.Generator().manual_seed(self.seed)
        linears = [layer for layer in model if isinstance(layer, nn.Linear)]
        return (torch.randn(self.rows, linears[0].in_features, generator=generator, dtype=torch.float64),
                torch.randn(self.rows, linears[-1].out_features, generator=generator, dtype=torch.float64))

    def placed(self, model: nn.Sequential) -> list[nn.Sequential]:
        """The stages as they should be."""
        return [model[start:end].to(device) for (start, end), device in zip(self.cuts, self.devices)]

    def __str__(self) -> str:
        return f'balance {list(self.balance)}, devices [{", ".join(f"cuda:{index}" for index in self.gpus)}]'


def cases(random: Random) -> list[Case]:
    """Smallest first: one stage, two, GPUs out of order, a GPU that holds two stages; and some larger ones."""
    small = [((1,), (0,)), ((1, 1), (0, 1)), ((2, 1), (0, 1)), ((1, 2), (0, 1)), ((2, 2), (1, 0)),
             ((1, 3, 2), (0, 1, 2)), ((2, 1, 1), (2, 0, 3)), ((3, 2, 1), (0, 0, 1)), ((1, 4, 1, 2), (0, 1, 2, 3))]
    for _ in range(4):
        stages = random.randrange(2, 5)
        small.append((tuple(random.randrange(1, 5) for _ in range(stages)),
                      tuple(random.sample(range(GPUS), stages))))
    return [Case(balance, gpus, random.randrange(2, 7), random.randrange(10**6)) for balance, gpus in small]


@dataclass(frozen=True)
class Placed:
    """Where a layer was found."""

    number: int
    device: str            #: of its parameters; '' if it has none
    buffers: str = ''      #: where its buffers are, if it has any and they are elsewhere
    is_copy: bool = False  #: is it another layer than the model's, or has it other parameters than before?

    def __str__(self) -> str:
        copied = ' (a copy)' if self.is_copy else ''
        return f'{self.number}{copied}' + (f' (buffers on {self.buffers})' if self.buffers else '')


def found(stages: Sequence[nn.Module], model: nn.Sequential, gpus: PretendGpus) -> list[tuple[Placed, ...]]:
    """For every stage, its layers and where they are."""
    return [tuple(_placed(layer, model, gpus) for layer in stage.modules() if hasattr(layer, 'number'))
            for stage in stages]


def expected(case: Case) -> list[tuple[Placed, ...]]:
    return [tuple(Placed(number, f'cuda:{gpu}' if number % 3 < 2 else '') for number in range(start, end))
            for (start, end), gpu in zip(case.cuts, case.gpus)]


def drawn(stages: Sequence[Sequence[Placed]]) -> str:
    """One line a stage: its device, and the numbers of its layers."""
    lines = []
    for index, stage in enumerate(stages):
        devices = ', '.join(dict.fromkeys(layer.device for layer in stage if layer.device)) or '(no parameters)'
        lines.append(f'stage {index}  {devices:<16}' + ' '.join(map(str, stage))[:52])
    return '\n'.join(lines)


def crossings(case: Case) -> list[Move]:
    """What has to be copied in a forward."""
    model = case.model()
    x, _ = case.batch(model)
    place, crossings = torch.device('cpu'), []
    for (start, end), device in zip(case.cuts, case.devices):
        if device != place:
            crossings.append(Move(place, device, tuple(x.shape), x.numel() * x.element_size()))
        place, x = device, model[start:end](x)
    return crossings


def is_detour(moves: list[Move], wanted: Move) -> bool:
    """Did a tensor go from its device to the next by way of a third?"""
    same = [move for move in moves if move.shape == wanted.shape]
    return wanted not in moves and any(one.source == wanted.source and other.destination == wanted.destination
                                       and one.destination == other.source for one in same for other in same)


def is_back_and_forth(moves: list[Move], wanted: list[Move]) -> bool:
    """Did a tensor go to another device and come back from there at once, though nothing had to?"""
    allowed = list(zip(wanted, wanted[1:]))
    return any(one.shape == other.shape and (one.source, one.destination) == (other.destination, other.source)
               and (one, other) not in allowed for one, other in zip(moves, moves[1:]))


def is_everywhere(moves: list[Move], wanted: list[Move]) -> bool:
    """Did the input itself go to several GPUs? (Nothing has come back to the CPU, so what left it is the input.)"""
    leaving = {move.destination for move in moves if move.source.type == 'cpu' and move.shape == wanted[0].shape}
    return len(leaving) > 1 and all(move.destination.type != 'cpu' for move in moves)


def _placed(layer: nn.Module, model: nn.Sequential, gpus: PretendGpus) -> Placed:
    device = _where(layer.parameters(), gpus)
    buffers = _where(layer.buffers(), gpus)
    is_copy = layer is not model[layer.number] or any(
        one is not other for one, other in zip(layer.parameters(), layer.originals))
    return Placed(layer.number, device, buffers if buffers != device else '', is_copy)


def _where(tensors: object, gpus: PretendGpus) -> str:
    return ', '.join(sorted({str(gpus.device_of(tensor)) for tensor in tensors}))
