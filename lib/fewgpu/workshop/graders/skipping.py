"""Small models with long skips on pretended GPUs, for the grader of exercise 12: what they should give and move."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.gpus import PretendGpus, pretend_gpus

Skips = dict[str, int]          # name: layer
Move = tuple[str, int, int]     # what, from which GPU, to which
GPUS, ROWS = 4, 3
CPU = -1                        # as the number of a GPU


@dataclass(frozen=True)
class Case:
    """Where the layers live, and the skips: (name, layer that saves, layer that loads)."""

    placement: tuple[int, ...]
    skips: tuple[tuple[str, int, int], ...]
    equal: bool = True     #: all layers are equally wide; else no two tensors are alike
    seed: int = 0

    @property
    def saves(self) -> Skips:
        return {name: layer for name, layer, _ in self.skips}

    @property
    def loads(self) -> Skips:
        return {name: layer for name, _, layer in sorted(self.skips, key=lambda skip: skip[2])}

    @property
    def arguments(self) -> tuple[list[int], Skips, Skips]:
        return list(self.placement), self.saves, self.loads

    @property
    def widths(self) -> list[int]:
        """Of the input and of what each layer gives."""
        return [2] * (len(self.placement) + 1) if self.equal else list(range(5, 6 + len(self.placement)))

    def batch(self) -> torch.Tensor:
        made = torch.Generator().manual_seed(self.seed)
        return torch.randn(ROWS, self.widths[0], generator=made, dtype=torch.float64)

    def layers(self, make: Callable[..., nn.Module]) -> list[nn.Module]:
        made = torch.Generator().manual_seed(self.seed)
        saved = {layer: self.widths[source + 1] for _, source, layer in self.skips}
        return [make(k, (self.widths[k], saved.get(k, 0), self.widths[k + 1]), made)
                for k in range(len(self.placement))]

    def __str__(self) -> str:
        return f'layers on GPUs {list(self.placement)}, saves {self.saves}, loads {self.loads}'


def cases(random: Random, equal: bool = True) -> list[Case]:
    """The smallest first."""
    fixed = [((0, 0, 0), (('a', 0, 2),)), ((0, 1, 1), (('a', 0, 2),)), ((0, 0, 1, 2), (('a', 0, 3),)),
             ((0, 1, 1, 0), (('a', 0, 3),)), ((0, 0, 1, 1), (('a', 1, 3),)), ((0, 1, 0, 1), (('a', 0, 3),)),
             ((0, 1, 2, 3, 3), (('a', 0, 4), ('b', 1, 3))),
             ((2, 0, 1, 1, 3), (('a', 0, 2), ('b', 1, 4))), ((0, 1, 2, 2, 1, 0), (('a', 0, 5), ('b', 1, 4))),
             ((0, 0, 1, 1, 2, 2, 3), (('c', 2, 4), ('a', 0, 6), ('b', 1, 5)))]
    return [*(Case(*each, equal) for each in fixed), *(drawn(random, equal) for _ in range(5))]


def drawn(random: Random, equal: bool) -> Case:
    """Layers in blocks on GPUs in any order, and up to three skips."""
    count = random.randrange(5, 10)
    placement = [random.randrange(GPUS)]
    while len(placement) < count:
        placement.append(random.randrange(GPUS) if random.random() < 0.6 else placement[-1])
    skips, savers, loaders = [], list(range(count - 2)), set()
    random.shuffle(savers)
    for name, saver in zip('abc', savers):
        free = [layer for layer in range(saver + 2, count) if layer not in loaders]
        if free:
            loaders.add(layer := random.choice(free))
            skips.append((name, saver, layer))
    return Case(tuple(placement), tuple(skips), equal, random.randrange(100))


def through(case: Case) -> list[Move]:
    return [(what, here, there) for k, (here, there) in enumerate(pairwise(case.placement)) if here != there
            for what in ['x', *(name for name, saver, loader in case.skips if saver <= k < loader)]]


def straight(case: Case) -> list[Move]:
    ends = [(name, case.placement[saver], case.placement[loader]) for name, saver, loader in case.skips]
    return [move for move in through(case) if move[0] == 'x'] + [move for move in ends if move[1] != move[2]]


class Plain(nn.Module):
    """tanh(x A + b), or tanh(x A + skip B + b)."""

    def __init__(self, number: int, widths: tuple[int, int, int], made: torch.Generator) -> None:
        super().__init__()
        self.number, (one, other, out) = number, widths

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=made, dtype=torch.float64))
        self.A, self.b, self.B = weight(one, out), weight(out), weight(other, out) if other else None

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        y = x @ self.A + self.b
        return torch.tanh(y if skip is None else y + skip @ self.B)


class Watched(Plain):
    """A layer that looks at what it is called with; `seen` is where it tells what skips it was given."""

    def __init__(self, number: int, widths: tuple[int, int, int], made: torch.Generator, gpus: PretendGpus,
                 seen: Callable[[int, torch.Tensor | None, torch.Tensor | None], None]) -> None:
        super().__init__(number, widths, made)
        self._gpus, self._seen = gpus, seen

    def forward(self, *given: Any) -> torch.Tensor:
        wanted = 1 if self.B is None else 2
        if len(given) != wanted:
            raise Failure(f'(Layer {self.number} takes {wanted}, and gets {len(given)}.)', misconception='how-many')
        home = self._gpus.device_of(self.A)
        for what, tensor in zip(('x', 'skip'), given):
            if isinstance(tensor, torch.Tensor) and self._gpus.device_of(tensor) != home:
                raise Failure(f'(Layer {self.number} is on {home}, and the {what} on {self._gpus.device_of(tensor)}.)',
                              misconception='skip-elsewhere' if what == 'skip' else 'x-elsewhere')
        self._seen(self.number, given[1] if wanted == 2 else None, None)
        y = super().forward(*given)
        self._seen(self.number, None, y)
        return y


@dataclass
class Ran:
    """What came of a forward."""

    output: torch.Tensor
    grads: list[torch.Tensor | None]           #: of the input and of all weights
    moves: list[tuple[int, int, tuple]]        #: in the forward: from, to, shape
    kept: list[tuple[int, list[str]]]          #: without grad: the first layer that ran while several skips that had been
                                               #: loaded before it were still there, and which
    device: int                                #: of the output


def run(work: Work, case: Case, grad: bool = True) -> Ran:
    """The learner's forward and, if `grad`, a backward."""
    with pretend_gpus(GPUS) as gpus:
        storages: dict[str, list[weakref.ref]] = {name: [] for name, *_ in case.skips}
        kept: list[tuple[int, list[str]]] = []

        def seen(number: int, skip: torch.Tensor | None, y: torch.Tensor | None) -> None:
            for name, saver, loader in case.skips:
                if y is not None and saver == number or skip is not None and loader == number:
                    storages[name].append(weakref.ref((skip if y is None else y).untyped_storage()))
            if y is None and not grad and not kept:
                if len(there(number)) > 1:
                    gc.collect()   # cycles that nobody refers to any more are no fault
                if len(names := there(number)) > 1:
                    kept.append((number, names))

        def there(number: int) -> list[str]:
            return [name for name, _, loader in case.skips if loader < number
                    and any(storage() is not None for storage in storages[name])]

        layers = case.layers(lambda *given: Watched(*given, gpus, seen))
        devices = [gpus.devices[index] for index in case.placement]
        for layer, device in zip(layers, devices):
            layer.to(device)
        x = case.batch().requires_grad_(grad)
        gpus.forget()
        with torch.set_grad_enabled(grad):
            output = work.forward(list(layers), list(devices), dict(case.saves), dict(case.loads), x)
        _check_output(work, output, layers, devices, gpus)
        moves = [(_index(move.source), _index(move.destination), move.shape) for move in gpus.moves]
        device = _index(gpus.device_of(output))
        weights = [weight for layer in layers for weight in layer.parameters()]
        if grad and output.requires_grad:
            output.sum().backward()
        grads = [None if each.grad is None else each.grad.detach().cpu() for each in (x, *weights)]
        return Ran(output.detach().cpu(), grads, moves, kept, device)


def _check_output(work: Work, output: Any, layers: list[nn.Module], devices: list[torch.device],
                  gpus: PretendGpus) -> None:
    if output is None:
        raise Failure(misconception='returns-nothing', lines=work.definition('forward'))
    if not isinstance(output, torch.Tensor):
        raise Failure(f'It is a {type(output).__name__}, not a tensor.', misconception='wrong-type',
                      lines=work.definition('forward'))
    if any(gpus.device_of(weight) != device for layer, device in zip(layers, devices) for weight in layer.parameters()):
        raise Failure(misconception='weights-travel', lines=work.definition('forward'))


def _index(device: torch.device) -> int:
    return CPU if device.type == 'cpu' else device.index


def plain(case: Case, *, of_input: bool = False, swapped: bool = False, detached: bool = False,
          x_detached: bool = False, own: bool = False,
          take: Callable[[list[torch.Tensor]], torch.Tensor] | None = None) -> list[Any]:
    """The output and the gradients of the plain model; or of one with a misconception. Raises if shapes do not fit.

    `of_input`: a layer saves what it takes, not what it gives. `swapped`: layer(skip, x). `own`: a layer gets x for the
    skip. `take`: out of the list of those that have been saved, whatever their names are.
    """
    layers, x = case.layers(Plain), case.batch().requires_grad_()
    loaded_by = {layer: name for name, layer in case.loads.items()}
    saved_by, skips, waiting, y = {layer: name for name, layer in case.saves.items()}, {}, [], x
    for k, layer in enumerate(layers):
        y = y.detach() if x_detached else y
        before = y
        if k in loaded_by:
            skip = y if own else take(waiting) if take else skips[loaded_by[k]]
            y = layer(*((skip, y) if swapped else (y, skip)))
        else:
            y = layer(y)
        if k in saved_by:
            kept = before if of_input else y
            skips[saved_by[k]] = kept.detach() if detached else kept
            waiting.append(kept)
    y.sum().backward()
    return [y.detach(), [each.grad for each in (x, *(weight for layer in layers for weight in layer.parameters()))]]


def wanted_moves(case: Case) -> Counter:
    """Of a case whose tensors all differ: from, to, shape."""
    shape = {name: (ROWS, case.widths[saver + 1]) for name, saver, _ in case.skips}
    moves = Counter({(CPU, case.placement[0], (ROWS, case.widths[0])): 1})
    for k, (here, there) in enumerate(pairwise(case.placement)):
        if here != there:
            moves[here, there, (ROWS, case.widths[k + 1])] += 1
    moves.update((here, there, shape[what]) for what, here, there in straight(case) if what != 'x')
    return moves
