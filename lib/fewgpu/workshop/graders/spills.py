"""For the grader of exercise 15: a model in shards, and what becomes of it in a step on one pretended GPU."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fewgpu.workshop.practice.gpus import PretendGpus, pretend_gpus

ROWS, WIDTH = 5, 6
GPU = torch.device('cuda', 0)
Tensor = torch.Tensor
Gradients = list[list[Tensor | None]]   # by shard


@dataclass(frozen=True)
class Model:
    """A model in shards of three layers each; `inner` are the outputs of the first two."""

    inner: tuple[int, ...]
    seed: int = 0
    has_grads: bool = False   #: are there gradients already?

    @property
    def count(self) -> int:
        return len(self.inner)

    def shards(self) -> list[nn.Module]:
        """Always the same."""
        torch.manual_seed(self.seed)
        made = [nn.Sequential(nn.Linear(WIDTH, wide), nn.Tanh(), nn.Linear(wide, wide), nn.Tanh(),
                              nn.Linear(wide, WIDTH), nn.Tanh()).double() for wide in self.inner]
        for shard in made if self.has_grads else ():
            for parameter in shard.parameters():
                parameter.grad = torch.ones_like(parameter)
        return made

    def batch(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        x, target = (torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
        return x, target

    def __str__(self) -> str:
        old = ', whose parameters have gradients already' if self.has_grads else ''
        return f'{self.count} shard{"s" * (self.count > 1)}{old}'


MODELS = [Model((7,)), Model((7, 8), seed=1), Model((7, 8, 9), seed=2), Model((7, 8, 9), seed=3, has_grads=True),
          Model((8, 9, 7, 10, 11), seed=4)]
LARGE = Model((64, 65, 66, 67, 68, 69, 70), seed=5)   # in which activations inside a shard are larger than between two


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    """Not symmetric in anything, and scaled."""
    return 3 * nn.functional.mse_loss(output, target) + output.mean()


def gradients(shards: list[nn.Module]) -> Gradients:
    return [[None if each.grad is None else each.grad.detach().cpu().clone() for each in shard.parameters()]
            for shard in shards]


def plain(model: Model) -> tuple[float, Gradients]:
    """The loss and the gradients of the plain model."""
    shards, (x, target) = model.shards(), model.batch()
    loss = loss_fn(nn.Sequential(*shards)(x), target)
    loss.backward()
    return loss.item(), gradients(shards)


@dataclass
class Run:
    """A forward of a shard."""

    shard: int
    on_device: bool
    others: list[int]     #: shards that were there, too
    with_graph: bool


@dataclass
class Watched:
    """What became of a step."""

    model: Model
    loss: Any = None
    gradients: Gradients = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    loaded: int = 0           #: bytes of weights and old gradients that went to the device
    together: list[int] = field(default_factory=list)     #: two shards that were there at the same time
    between: list[int] = field(default_factory=list)      #: bytes on the device, beside weights, when a shard comes
    left: list[int] = field(default_factory=list)         #: shards that are on the device at the end
    is_batch_changed: bool = False
    are_weights_changed: bool = False
    most: int = 0             #: shards on the device at once


def watch(function: Callable, model: Model) -> Watched:
    """One step on a pretended GPU. Raises what the function raises."""
    seen, shards, (x, target) = Watched(model), model.shards(), model.batch()
    before = copy.deepcopy(shards)
    with pretend_gpus(1) as gpus:
        _observe(gpus, shards, seen)
        hooks = [shard.register_forward_pre_hook(_counted(number, shards, gpus, seen))
                 for number, shard in enumerate(shards)]
        loss = function(shards, x, target, loss_fn, GPU)
        seen.loss = loss.detach().cpu() if isinstance(loss, Tensor) and loss.grad_fn is None else loss
        seen.left = _there(gpus, shards)
        for hook in hooks:
            hook.remove()
        seen.gradients = gradients(shards)
        seen.is_batch_changed = (x.requires_grad or target.requires_grad
                                 or not all(map(torch.equal, (x, target), model.batch())))
        seen.are_weights_changed = not all(torch.equal(one.detach().cpu(), other) for one, other in zip(
            (each for shard in shards for each in shard.parameters()),
            (each for shard in before for each in shard.parameters())))
    return seen


def _there(gpus: PretendGpus, shards: list[nn.Module]) -> list[int]:
    """The shards of which something is on the device."""
    return [number for number, shard in enumerate(shards)
            if any(gpus.device_of(each) == GPU for each in shard.parameters())]


def _observe(gpus: PretendGpus, shards: list[nn.Module], seen: Watched) -> None:
    """Look at the device whenever weights come to it."""
    note = gpus.note_move

    def noted(tensor: Tensor, source: torch.device, destination: torch.device) -> None:
        note(tensor, source, destination)
        if destination != GPU or tensor.dim() and len(tensor) == ROWS or not tensor.dim():   # of the batch
            return
        seen.loaded += tensor.nbytes
        if tensor.shape[1:] != (WIDTH,):   # not the first weight of a shard
            return
        there = _there(gpus, shards)
        seen.most = max(seen.most, len(there))
        if not there:
            seen.between.append(gpus.bytes_on(GPU) - tensor.nbytes)
        elif len(there) > 1:
            seen.together = seen.together or there[:2]
    gpus.note_move = noted


def _counted(number: int, shards: list[nn.Module], gpus: PretendGpus, seen: Watched) -> Callable:
    def hook(shard: nn.Module, inputs: tuple) -> None:
        there = _there(gpus, shards)
        seen.most = max(seen.most, len(there))
        on_device = all(gpus.device_of(each) == GPU for each in shard.parameters())
        seen.runs.append(Run(number, on_device, [k for k in there if k != number], torch.is_grad_enabled()))
    return hook


def stepped(model: Model, *, begin: Callable[[Tensor, Tensor, Tensor], None] | None = None, kept: str = 'input',
            left_out: Callable[[int, int], bool] = lambda k, count: False, order: str = 'reversed',
            last_twice: bool = False, hand_on: str = 'input') -> tuple[None, Gradients]:
    """The gradients of a step that is wrong in one way; its loss may be anything.

    `begin(y, gradient, target)` begins the backward of a shard that is not the last; `kept`: what its forward runs
    again with; `left_out(k, count)`: does shard k get no backward? `hand_on`: the gradient of its input, or its output.
    """
    shards, (x, target) = model.shards(), model.batch()
    inputs = [x]
    for shard in shards:
        inputs.append(shard(inputs[-1]).detach())
    last, gradient = model.count - 1, None
    numbers = range(last, -1, -1) if order == 'reversed' else [last, *range(last)]
    for k in [last] * last_twice + [*numbers]:
        given = {'input': inputs[k], 'output': inputs[k + 1] if k < last else inputs[k], 'x': x,
                 'turned': inputs[last - k]}[kept]
        leaf = given.clone().requires_grad_()
        y = shards[k](leaf)
        y.retain_grad()
        if left_out(k, model.count):
            continue
        if k == last:
            loss_fn(y, target).backward()
        else:
            (begin or (lambda y, gradient, target: y.backward(gradient)))(y, gradient, target)
        if begin is not stays or k == last:
            gradient = leaf.grad if hand_on == 'input' else y.grad
    return None, gradients(shards)


def stays(y: Tensor, gradient: Tensor, target: Tensor) -> None:
    """The gradient that the last shard has given to its input goes to all."""
    y.backward(gradient)


def cleared(model: Model) -> tuple[None, Gradients]:
    """Without the gradients that were there before."""
    return None, plain(Model(model.inner, model.seed))[1]


WRONG_STEPS: list[tuple[str, Callable[[Model], tuple[None, Gradients]]]] = [
    ('gradient-ones', lambda model: stepped(model, begin=lambda y, gradient, target: y.sum().backward())),
    ('gradient-ones', lambda model: stepped(model, begin=lambda y, gradient, target: y.mean().backward())),
    ('loss-of-each', lambda model: stepped(model, begin=lambda y, gradient, target: loss_fn(y, target).backward())),
    ('gradient-stays', lambda model: stepped(model, begin=stays)),
    ('only-last', lambda model: stepped(model, left_out=lambda k, count: k < count - 1)),
    ('first-left-out', lambda model: stepped(model, left_out=lambda k, count: k == 0 and count > 1)),
    ('wrong-input', lambda model: stepped(model, kept='output')),
    ('wrong-input', lambda model: stepped(model, kept='x')),
    ('wrong-input', lambda model: stepped(model, kept='turned')),
    ('handed-on', lambda model: stepped(model, hand_on='output')),
    ('no-gradients', lambda model: stepped(model, left_out=lambda k, count: True)),
    ('no-gradients', lambda model: (None, [[None] * len(list(shard.parameters())) for shard in model.shards()])),
    ('forward-order', lambda model: stepped(model, order='forward')),
    ('backward-twice', lambda model: stepped(model, last_twice=True)),
    ('cleared', cleared),
]
