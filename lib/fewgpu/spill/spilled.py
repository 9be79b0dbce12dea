"""Spilling: a model larger than its device trains there, shard by shard (Hydra, arXiv 2110.08633).

The layers, their gradients and their optimizers live in the memory of the host. A mini-batch is
2S - 1 units of work, each with one of the S shards on the device:

    F0  F1  ..  L (the last shard: forward, loss, backward)  ..  B1  B0

A forward unit keeps its shard's input only, and a backward unit recomputes from it. So all shards but
the last are loaded twice a step, and the last once. With `prefetch` there are two buffers: while
a unit computes, the next shard is on its way in, and the gradients of the one before are on their
way out, where the host updates its weights; without, a unit waits for its shard and for its gradients.
(The authors' code moves weights and optimizer states to the device and back; here only weights and
gradients travel, half as much with Adam, and the update takes time on the host.)

What a device must hold at once: see `fewgpu.spill.pilot`, which finds the cuts.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.ahead import Ahead
from fewgpu.context import Context
from fewgpu.device import Device, one_thread
from fewgpu.held import MakeOptimizer, verify_loss_scale
from fewgpu.loss import LossFn
from fewgpu.loss_scale import LossScale
from fewgpu.maker import verify_made, verify_maker
from fewgpu.microbatch import rows_of
from fewgpu.optimizer_state import load_named_state, named_state, verify_belongs
from fewgpu.partition import device_of, split, turn_of, verify_balance, verify_has_layers
from fewgpu.skip_routes import verify_skips_stay
from fewgpu.spill.shard import Placed, Shard
from fewgpu.updates import updating
from fewgpu.spill.units import Behind, MiniBatch, Visit, WithLoss, units


class Spilled:
    """A model that visits a device shard by shard.

    Usage::

        device = Device(memory_limit=100_000)   # bytes; or Device('cuda')
        balance = shards_that_fit(module, x, y, nn.functional.mse_loss, device)
        model = Spilled(module, balance, device=device, loss_fn=nn.functional.mse_loss, optimizer=torch.optim.Adam)
        for x, y in batches:
            loss = model.step(x, y)

    Arguments:
        module: the layers, an nn.Sequential. They move to the host, and stay there.
        balance: layers a shard; see `fewgpu.spill.shards_that_fit`. A skip (`fewgpu.skip`) stays inside one shard.
        device: a Device or its name; by default the GPU, or a virtual CPU device where there is none.
        loss_fn: from (output, target) to the loss of the mini-batch.
        optimizer: makes an optimizer from those of a shard's parameters that are trained; it works on the
            host. Without, `step` adds to the parameters' `.grad`, for an optimizer of the caller
            (over `parameters()`; several steps before its step accumulate).
        prefetch: load the next shard and store the last gradients while a unit computes.
        inputs_on_host: what the forward keeps goes to the host until the backward.
        loss_scale: a `LossScale`, for float16: then all shards update after the backward, or none does.

    Results are those of the plain model; a shard draws random numbers from the stream of stage s, as
    in a Pipeline of the same balance with one micro-batch. Raises TypeError and ValueError as Pipeline does.
    """

    def __init__(self, module: nn.Sequential, balance: Iterable[int], *, device: Any = None,
                 loss_fn: LossFn, optimizer: MakeOptimizer | None = None, prefetch: bool = True,
                 inputs_on_host: bool = False, loss_scale: LossScale | None = None) -> None:
        verify_has_layers(module)
        if optimizer is not None:
            verify_maker(optimizer, 'shard')
        verify_loss_scale(loss_scale, updates=optimizer is not None)
        self.loss_scale = loss_scale
        self.balance = verify_balance(module, balance)
        verify_skips_stay(module, self.balance, 'shard', 'put its Save and Load into one shard (balance)')
        self.device, self.module = device_of(device), module.to('cpu')
        self.prefetch, self.inputs_on_host = prefetch, inputs_on_host
        if not self.device.is_virtual:
            for tensor in [*module.parameters(), *module.buffers()]:
                tensor.data = tensor.data.pin_memory()   # or a copy to the GPU would stop its kernels
        self.shards = [Shard(s, part, _optimizer(part, optimizer))
                       for s, part in enumerate(split(module, self.balance))]
        self._with_loss = WithLoss(self.shards[-1].module, loss_fn)
        self.units = units(len(self.shards))
        self.visits: list[Visit] = []   #: of the latest step
        self.turn = turn_of(module)   #: the lock that who trains it holds

    def step(self, x: Any, y: Any, *, generator: torch.Generator | None = None, update: bool = True) -> torch.Tensor:
        """Train on one mini-batch; its loss, a tensor without a graph, on the host.

        `generator` gives the seed of the step's random streams, by default torch's own does. With `update=False`
        gradients are added to the parameters' `.grad`, for the next step that updates.
        """
        with (self.turn, torch.enable_grad(), updating(self._optimizers(), self.loss_scale, bool, update=update,
                                                        within=False) as at_once):
            context, self.visits = Context.capture([self.device], draw_seed(generator)), []
            batch = self.begin(x, y, context, self.visits, updates=at_once)
            promote = partial(batch.promote, device=self.device)
            with _as_a_worker(self.device, context), Behind(self.device, self.prefetch) as behind:
                for unit, copies in Ahead(self.units, promote, depth=int(self.prefetch)):
                    gradients = batch.compute(unit, copies, self.device)
                    del copies   # before anything is waited for
                    behind(batch, unit, gradients, self.device)
        return batch.loss

    def begin(self, x: Any, y: Any, context: Context, visits: list[Visit], name: str = '', *, updates: bool = True
              ) -> MiniBatch:
        """A mini-batch whose units are to run, one after the other, on any of the context's devices.
        Errors will call the model by its name. Its shards update as they go, unless told otherwise.

        Raises ValueError if x and y differ in their rows, or if a loss scale would not be heeded.
        """
        if rows_of(y) != rows_of(x):
            raise ValueError(f'{rows_of(y)} rows of targets for {rows_of(x)} rows of inputs')
        if updates and self.loss_scale:
            raise ValueError('a model with a loss scale trains by its own step, not beside others')
        scale = self.loss_scale.scale if self.loss_scale else 1.0
        x = Placed(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, x), None)
        return MiniBatch(self.shards, self._with_loss, x, y, context, visits,
                         inputs_on_host=self.inputs_on_host, name=name, updates=updates, scale=scale)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Under the plain model's keys."""
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """What the optimizers remember, by the plain model's names: see fewgpu.optimizer_state."""
        return named_state(self.module.named_parameters(), self._optimizers())

    def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over copies of what `optimizer_state` gave, perhaps with another balance or engine.

        Raises ValueError or KeyError, before anything has changed, for the state of another model."""
        verify_belongs(self.module, state)
        load_named_state(self.module.named_parameters(), self._optimizers(), state)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [shard.optimizer for shard in self.shards if shard.optimizer]


def _optimizer(module: nn.Module, make: MakeOptimizer | None) -> torch.optim.Optimizer | None:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return verify_made(make(iter(trained))) if make and trained else None


@contextlib.contextmanager
def _as_a_worker(device: Device, context: Context) -> Iterator[None]:
    """Inside, this thread uses one core for a virtual device, and autocast only where the context says."""
    with contextlib.ExitStack() as stack:
        if device.is_virtual:
            stack.enter_context(one_thread())
        for kind, _ in context.autocast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Of the random streams of one step, from a generator (torch's own by default)."""
    return int(torch.randint(2**62, (), dtype=torch.int64, device='cpu', generator=generator))
