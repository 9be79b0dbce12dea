"""What the checks of ZeRO's layers share: models that watch which weights are whole, and the plain model's answers."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from fewgpu.workshop.graders.zero_step import padding
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import close, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.collectives import Done, Rank, Uneven, run_ranks
from fewgpu.workshop.practice.dense import Dense


@dataclass(frozen=True)
class Model:
    """Layers of these widths on so many ranks, whose tensors are drawn from a seed."""

    ranks: int
    widths: tuple[int, ...]
    rows: int = 2
    seed: int = 0

    @property
    def layers(self) -> list[Dense]:
        return [Dense(*pair) for pair in zip(self.widths, self.widths[1:])]

    def piece(self, layer: int) -> int:
        """Numbers in a rank's piece of a layer."""
        return -(-self.layers[layer].numbers // self.ranks)

    def weights(self) -> list[torch.Tensor]:
        made = torch.Generator().manual_seed(self.seed)
        return [torch.randint(-3, 4, (layer.numbers,), generator=made).double() / 4 for layer in self.layers]

    def pieces(self, rank: int) -> list[torch.Tensor]:
        return [self.cut(each)[rank].clone() for each in self.weights()]

    def cut(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.cat([tensor, tensor.new_zeros(-len(tensor) % self.ranks)]).chunk(self.ranks))

    def batch(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank's own rows, and the gradient of their output."""
        made = torch.Generator().manual_seed(1000 + 10 * self.seed + rank)
        return tuple(torch.randint(-4, 5, (self.rows, width), generator=made).double() / 4
                     for width in (self.widths[0], self.widths[-1]))

    def outputs(self) -> list[torch.Tensor]:
        return [self._run(rank)[0].detach() for rank in range(self.ranks)]

    def gradients(self) -> list[list[torch.Tensor]]:
        """By autograd: for every rank, of every layer's weights, whole."""
        answer = []
        for rank in range(self.ranks):
            output, weights = self._run(rank)
            answer.append(list(torch.autograd.grad(output, weights, self.batch(rank)[1])))
        return answer

    def _run(self, rank: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x, weights = self.batch(rank)[0], [each.requires_grad_() for each in self.weights()]
        for layer, each in zip(self.layers, weights):
            x = torch.tanh(x @ each.view(layer.inputs, layer.outputs))
        return x, weights

    def __str__(self) -> str:
        layers = ', '.join(f'Dense({layer.inputs}, {layer.outputs})' for layer in self.layers)
        return f'{self.ranks} rank{"s" if self.ranks > 1 else ""}, layers {layers}'


def models(random: Random) -> list[Model]:
    """The smallest first. Square layers come before others: there a mistake is a wrong number, and no error."""
    return [Model(2, (2, 2)), Model(2, (1, 3)), Model(1, (2, 2, 2)), Model(2, (2, 2, 2, 2), seed=1),
            Model(3, (2, 3, 1), 3), Model(4, (1, 2, 1)), Model(3, (3, 3, 3)),
            *(Model(random.randrange(2, 6), tuple(random.randrange(1, 5) for _ in range(4)), random.randrange(1, 4),
                    random.randrange(100)) for _ in range(3))]


@dataclass(frozen=True)
class Computed:
    """What was whole on rank 0 when a layer computed."""

    what: str            #: 'forward' or 'backward'
    layer: int
    others: int          #: other whole tensors of weights
    reduced: int         #: gradients that had been shared out


class Watch:
    """The whole weights on a rank: those that have come from all_gather, and those that a layer was given."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.computed = rank, list[Computed]()   # what happened, in order
        self._known: list[tuple[int, weakref.ref]] = []   # the layer, and the storage
        self._seen = 0

    def alive(self) -> int:
        """How many of them there are."""
        if any(storage() is not None for storage in self.rank.gathered):
            gc.collect()
        return sum(storage() is not None for storage in self.rank.gathered)

    def computes(self, what: str, layer: int, weights: torch.Tensor) -> None:
        new, self._seen = self.rank.gathered[self._seen:], len(self.rank.gathered)
        if others := self._others(new, layer, weights):
            gc.collect()   # cycles that nobody refers to any more are no fault
            others = self._others(new, layer, weights)
        self._known += [(layer, storage) for storage in [*new, weakref.ref(weights.untyped_storage())]]
        reduced = sum(call.kind != 'all-gather' for call in self.rank.calls)
        self.computed.append(Computed(what, layer, others, reduced))

    def _others(self, new: list[weakref.ref], layer: int, weights: torch.Tensor) -> int:
        mine = weights.untyped_storage()._cdata
        older = {storage()._cdata for number, storage in self._known if number != layer and storage() is not None}
        return len(older - {mine}) + max(sum(storage() is not None for storage in new) - 1, 0)


class Watched(Dense):
    """A layer that tells the watch, and whoever gives it something else than its weights."""

    def __init__(self, layer: Dense, number: int, watch: Watch) -> None:
        super().__init__(layer.inputs, layer.outputs)
        self._number, self._watch = number, watch

    def forward(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self._look('forward', weights)
        return super().forward(weights, x)

    def backward(self, weights: torch.Tensor, x: torch.Tensor,
                 gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._look('backward', weights)
        return super().backward(weights, x, gradient)

    def _look(self, what: str, weights: torch.Tensor) -> None:
        ranks, numbers = self._watch.rank.size, self.numbers
        piece, given = -(-numbers // ranks), tuple(weights.shape)
        if given != (numbers,) and given in ((piece * ranks,), (piece,)):
            raise Failure(f'(Layer {self._number} has {numbers} weights, and gets {given[0]} numbers.)',
                          misconception='padding-kept' if given == (piece * ranks,) else 'not-gathered')
        self._watch.computes(what, self._number, weights)


@dataclass
class Left:
    """What a rank has at the end."""

    output: torch.Tensor
    alive: int                    #: whole weights between forward and backward
    shared: Any                   #: what backward has returned, None without one
    watch: Watch


def run(work: Work, model: Model, backward: bool = True) -> Done:
    """Let the learner's ranks run a model; the results are `Left`."""
    def on_rank(rank: Rank) -> Left:
        watch = Watch(rank)
        layers = [Watched(layer, number, watch) for number, layer in enumerate(model.layers)]
        pieces, (x, gradient) = model.pieces(rank.rank), model.batch(rank.rank)
        answer = work.forward(layers, pieces, x, rank)
        if answer is None:
            raise Failure(misconception='returns-nothing', lines=work.definition('forward'))
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Failure('`forward` returns two things: the output, and what backward needs.',
                          misconception='wrong-type', lines=work.definition('forward'))
        output, kept = answer
        del answer
        left = Left(output, watch.alive(), None, watch)
        if backward:
            shared = work.backward(layers, pieces, kept, gradient, rank)
            left.shared = list(shared) if isinstance(shared, tuple) or hasattr(shared, '__next__') else shared
        if not all(map(torch.equal, pieces, model.pieces(rank.rank))):
            raise Failure(misconception='pieces-changed', lines=work.definition('backward' if backward else 'forward'))
        return left

    gc.freeze()   # all that there is already is no garbage: collecting is fast
    try:
        return run_ranks(on_rank, [() for _ in range(model.ranks)])
    except Uneven as error:
        raise padding(work, error, 0, 0) from None
    finally:
        gc.unfreeze()


def check_padding(work: Work, backward: bool) -> None:
    """Raise `Failure` if it is padding that keeps the learner's code from running, or a piece where all is needed."""
    model = Model(2, (1, 3))
    try:
        run(work, model, backward)
    except Failure as failure:
        failure.case = failure.case or str(model)
        raise
    except Exception:
        return   # another check says it


def tell(model: Model, got: Any, wanted: Any) -> str:
    """The first piece that is wrong."""
    if isinstance(got, BaseException):
        return str(model)
    for rank, (mine, right) in enumerate(zip(got, wanted)):
        if not isinstance(right, list):
            mine, right = [mine], [right]
        if not isinstance(mine, list) or len(mine) != len(right):
            return f'{model}\nyours     on rank {rank}: {shown(mine, 50)}\nexpected  a list of {len(right)} tensors'
        for layer, (one, other) in enumerate(zip(mine, right)):
            if not close(one, other):
                what = f'on rank {rank}, layer {layer}' if len(right) > 1 else f'on rank {rank}'
                return f'{model}\nyours     {what}: {shown(one, 45)}\nexpected  {what}: {shown(other, 45)}'
    return str(model)


def mean_pieces(model: Model, scale: Callable[[int], float] = lambda ranks: 1 / ranks) -> list[list[torch.Tensor]]:
    """Of every rank: its pieces of the mean gradients."""
    each = model.gradients()
    total = [model.cut(sum(of_layer) * scale(model.ranks)) for of_layer in zip(*each)]
    return [[pieces[rank] for pieces in total] for rank in range(model.ranks)]
