"""Replicas of a small model whose gradients say whose they are; what the checks of exercise 03 share.

Layer k of a replica computes h + (k + 1) * sum(w) * x, and the rows of rank r are all x = 10^r. So the gradient of
every number of w is (k + 1) * 10^r on rank r: 1, 10, 100 for the first layer on the ranks 0, 1, 2. Weights are matrices
of one row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.graders.complete import verify_complete
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.practice.ranks import Rank, Run, run_ranks

WEIGHT = 13 / 32   # no gradient has such numbers
NUMBER = 8           # bytes of one
Grads = list[list[torch.Tensor | None]]   # of every rank, of every layer


@dataclass
class Left:
    """What a rank has at the end."""

    grads: list[torch.Tensor | None]
    weights: list[torch.Tensor]
    hooks: list[int]                              #: so many there are after every step


@dataclass(frozen=True)
class Scene:
    """What the ranks have to do in a case."""

    rows: tuple[int, ...]                              #: of every rank
    sizes: tuple[int, ...] = (1, 1)                    #: numbers in the weights of every layer
    skips: tuple[tuple[int, int], ...] = ()            #: (rank, layer): this rank does not use that layer
    turned: tuple[int, ...] = ()                       #: ranks that use the layers in the reverse order
    earlier: int = 0                                   #: backwards before, with the same rows
    rests: tuple[tuple[int, int], ...] = ()            #: (rank, layer): this rank uses that layer only in the earlier
    steps: int = 1
    seconds: tuple[float, ...] = ()                    #: of the backward of each layer; the last: of what is before
    slow: tuple[float, ...] = field(default=())        #: by rank: how many times as long it takes
    latency: float = 0.0
    bandwidth: float = float('inf')

    def layers(self, rank: int, earlier: bool = False) -> list[int]:
        """Those that a rank uses, in its order; in the last backward or in the `earlier`."""
        unused = self.skips if earlier else self.skips + self.rests
        used = [layer for layer in range(len(self.sizes)) if (rank, layer) not in unused]
        return used[::-1] if rank in self.turned else used

    def share(self, rank: int) -> float:
        return self.rows[rank] / sum(self.rows)

    def local(self, rank: int, layer: int, old: bool = True, new: bool = True) -> torch.Tensor | None:
        """The gradient that a rank has of a layer before anything is averaged: of earlier backwards, and of this."""
        backwards = old * self.earlier * (layer in self.layers(rank, earlier=True)) + new * (layer in self.layers(rank))
        return full(self.sizes[layer], backwards * (layer + 1) * 10**rank) if backwards else None

    def combined(self, weight: Callable[[int], float], old: bool = True, new: bool = True) -> Grads:
        """All ranks have the sum of weight(rank) times the gradients of all ranks."""
        ranks = range(len(self.rows))
        each = [sum((weight(rank) * local for rank in ranks
                     if (local := self.local(rank, layer, old, new)) is not None), full(size, 0))
                for layer, size in enumerate(self.sizes)]
        return [each for _ in ranks]

    def truth(self) -> Grads:
        """The gradients of the plain model on the rows of all ranks: the mean over all of them."""
        return self.combined(self.share)

    def alone(self) -> Grads:
        """Every rank still has its own."""
        return [[self.local(rank, layer) for layer in range(len(self.sizes))] for rank in range(len(self.rows))]

    def __str__(self) -> str:
        text = ' and '.join(map(str, self.rows)) + ' rows'
        text += ''.join(f'; rank {rank} does not use layer {layer}' for rank, layer in self.skips)
        text += ''.join(f'; on rank {rank} the last layer comes first' for rank in self.turned)
        plural = 's' if self.earlier > 1 else ''
        text += f'; after {self.earlier} plain backward{plural} without averages' if self.earlier else ''
        text += ''.join(f'; now rank {rank} does not use layer {layer}' for rank, layer in self.rests)
        return text + (f'; step {self.steps} of {self.steps}' if self.steps > 1 else '')


def full(size: int, value: float) -> torch.Tensor:
    """In the shape of a weight."""
    return torch.full((1, size), float(value), dtype=torch.float64)


def run(scene: Scene, function: Callable[..., None], whole: bool, hooks: list[int] | None = None) -> Run:
    """Run a scene: the results are what is `Left`. `function` is `backward` if `whole`, else `average`.

    `hooks` gets the hooks that rank 0 has after every step, even if the next one raises.
    """
    hooks = [] if hooks is None else hooks

    def on_rank(rank: Rank) -> Left:
        weights = [nn.Parameter(full(size, WEIGHT)) for size in scene.sizes]
        for _ in range(scene.steps):
            for weight in weights:
                weight.grad = None
            for _ in range(scene.earlier):
                _loss(scene, weights, rank, earlier=True).backward()
            loss = _loss(scene, weights, rank, scene.seconds)
            if whole:
                function(loss, weights, scene.share(rank.rank), rank)
            else:
                loss.backward()
                function(weights, scene.share(rank.rank), rank)
            if rank.rank == 0:
                hooks.append(sum(map(_hooks, weights)))
        grads = [None if weight.grad is None else weight.grad.detach().clone() for weight in weights]
        return Left(grads, [weight.detach().clone() for weight in weights], hooks)

    return run_ranks(on_rank, [() for _ in scene.rows], latency=scene.latency, bandwidth=scene.bandwidth, strict=False)


def _hooks(weight: nn.Parameter) -> int:
    return len(weight._post_accumulate_grad_hooks or ()) + len(weight._backward_hooks or ())


def _loss(scene: Scene, weights: list[nn.Parameter], rank: Rank, seconds: tuple[float, ...] = (),
          earlier: bool = False) -> torch.Tensor:
    x = torch.full((scene.rows[rank.rank],), 10.0**rank.rank, dtype=torch.float64)
    pace = scene.slow[rank.rank] if scene.slow else 1.0
    hidden = x.clone().requires_grad_()
    if seconds:
        hidden = rank.backward_takes(seconds[-1] * pace, hidden)
    for layer in scene.layers(rank.rank, earlier):
        hidden = hidden + (layer + 1) * (weights[layer] * 1.0).sum() * x
        if seconds:
            hidden = rank.backward_takes(seconds[layer] * pace, hidden)
    return hidden.mean()


def only_what_comes(scene: Scene) -> Grads:
    """As `as_they_come`, but who has none starts nothing: then the others wait."""
    if scene.skips or scene.rests:
        raise RuntimeError('a reduction is missing')
    return as_they_come(scene)


def as_they_come(scene: Scene) -> Grads:
    """What comes first on a rank is added to what comes first on the others; who has none comes last."""
    layers, ranks = range(len(scene.sizes)), range(len(scene.rows))
    orders = [[*scene.layers(rank)[::-1], *(layer for layer in layers if layer not in scene.layers(rank))]
              for rank in ranks]
    zeros = full(scene.sizes[0], 0)
    answer = [[zeros] * len(layers) for _ in ranks]
    for turn in layers:
        locals_ = [scene.local(rank, orders[rank][turn]) for rank in ranks]
        total = sum((scene.share(rank) * own for rank, own in enumerate(locals_) if own is not None), zeros)
        for rank in ranks:
            answer[rank][orders[rank][turn]] = total
    return answer


def same(one: Any, other: Any) -> bool:
    """Equal up to rounding; None is like None."""
    if isinstance(other, (list, tuple)):
        return isinstance(one, (list, tuple)) and len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    if other is None or one is None:
        return one is other
    return (isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
            and torch.allclose(one, other, rtol=1e-9, atol=1e-12))


def verify_waited(run: Run, lines: list[Line]) -> None:
    """Raise `Failure` if a gradient is still on its way; `lines` is where to look."""
    for rank, left in enumerate(run.results):
        for layer, grad in enumerate(left.grads):
            if grad is not None and bool(grad.isnan().any()):
                waited = all(rank in reduction.waited for reduction in run.reductions)
                raise Failure(f'(The gradient of layer {layer} on rank {rank} is undefined.)',
                              misconception='filled-in-flight' if waited else 'no-wait', lines=lines)
    verify_complete(run, lines)


def tell(scene: Scene, got: Any, wanted: Grads) -> str:
    """The first gradient that is wrong."""
    case = f'{len(scene.rows)} ranks with {scene}'
    if isinstance(got, BaseException):
        return case
    for rank, (mine, right) in enumerate(zip(got, wanted)):
        for layer, (grad, true) in enumerate(zip(mine, right)):
            if not same(grad, true):
                where = f'.grad of layer {layer} on rank {rank}'
                was = ', '.join('None' if each is None else f'{float(each.flatten()[0]):g}' for each in
                                (scene.local(other, layer) for other in range(len(scene.rows))))
                return (f'{case}\nbefore    on ranks 0, 1, ...: {was}\n'
                        f'yours     {where}: {"None" if grad is None else f"{float(grad.flatten()[0]):g}"}\n'
                        f'expected  {where}: {float(true.flatten()[0]):g}')
    return case
