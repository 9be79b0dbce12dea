"""Offloaded: a model trains whose parameters and optimizer states are on disk, or in the host's memory.

The layers visit the device one after the other, first to last and back again:

    disk    | read 2   | read 3   | read 4                 ahead of what is computed
    link    | copy 1   | copy 2   | copy 3
    device  | layer 0  | layer 1  | layer 2    ...   recompute 2, back 2 | recompute 1, back 1
    host    |                                                            | optimizer 2, write 2

The forward keeps the inputs of layers alone. In the backward a layer is loaded again and recomputed;
its gradients go to the host, where the optimizer updates it while the next layer computes. It is the
offload engine of ZeRO-Infinity (arXiv 2104.07857, sections 5 and 6), for one device or a rank each.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.ahead import verify_depth
from fewgpu.buckets import fingerprint
from fewgpu.context import Context, evaluating
from fewgpu.group import is_distributed
from fewgpu.limit import verify_time_limit
from fewgpu.loss import LossFn, is_mean, verify_all_rows_count, verify_loss
from fewgpu.maker import verify_made, verify_maker
from fewgpu.microbatch import gather, rows_of, scatter, sizes, verify_chunks
from fewgpu.partition import device_of, turn_of, verify_has_layers
from fewgpu.optimizer_state import verify_belongs
from fewgpu.offload.packed import options, restore_options, verify_options
from fewgpu.offload.shares import Alone, Together, verify_reading
from fewgpu.offload.states import load_optimizer_state, optimizer_state, verify_state_dict
from fewgpu.offload.store import HostStore, Store
from fewgpu.offload.unit import MakeOptimizer, make_units
from fewgpu.offload.versions import Versions
from fewgpu.offload.visits import Times, Visits, without_autocast
from fewgpu.skip_routes import verify_skips_stay
from fewgpu.transport.host import to_device


class Offloaded:
    """Trains an nn.Sequential of which only a few layers at a time are on the device.

    Usage::

        with DiskStore() as store:   # or DiskStore('states'), a folder to go on from another time
            model = Offloaded(module, optimizer=torch.optim.Adam, loss_fn=nn.functional.mse_loss, store=store)
            for x, y in batches:
                loss = model.step(x, y)

    Arguments:
        module: the layers. What its parameters hold moves to the store, and they are empty from then on; buffers stay
            on the device. A skip (`fewgpu.skip`) stays inside one layer.
        optimizer: makes an optimizer of the host from a list of parameters; one a layer (see
            `optimizers`; the learning rate may be changed there).
        loss_fn: from (output, target) to a mean over the rows, or to a sum if it says so: see `Pipeline`. (Any loss, a
            weighted mean too, where it sees all rows: one micro-batch, no other ranks.)
        device: a Device or its name; the first GPU, or a virtual CPU device, by default.
        store: where parameters are, `states` where optimizer states are: by default the same, and the
            host's memory. A store that holds a model already is gone on with, at its latest whole step,
            by the same kind of optimizer, whose learning rate and other options are those that were stored.
        depth: how many units are loaded ahead: with 3, one is read while the next is on its way to the
            device and (on ranks) the one after is gathered. 0: nothing is.
        recompute: False keeps the graphs of the forward instead.
        group: of ranks that train the same model, each on rows of its own (by default all, if
            torch.distributed is initialised), each with a store of its own. `reading` is 'slices' (each reads
            its own, then they gather) or 'broadcast' (rank 0 reads and updates all).
        time_limit: seconds that a rank may wait for another.

    Results equal those of the plain model and optimizer, bit for bit, with `chunks` micro-batches that add up
    their gradients; on two ranks those of the plain model with the micro-batches of both. On ranks, an optimizer
    sees flat slices: it must treat every number alike (Adam, SGD). A TiledLinear in a layer is loaded tile by
    tile (on ranks, whole): in the forward, the recompute and the backward of every micro-batch. There is no loss
    scale, for layers update one by one before the last gradient is known: use bfloat16.

    A `step` that fails changes nothing: parameters, states and buffers are those of the step before,
    in the stores as here. Raises what `Pipeline` raises for a module or a loss that does not fit.
    """

    def __init__(self, module: nn.Sequential, *, optimizer: MakeOptimizer, loss_fn: LossFn,
                 device: Any = None, store: Store | None = None, states: Store | None = None,
                 depth: int = 3, recompute: bool = True, group: dist.ProcessGroup | None = None,
                 reading: str = 'slices', time_limit: float = 60.0) -> None:
        verify_has_layers(module)
        verify_skips_stay(module, [1] * len(module), 'layer',
                          'make the layers from its Save to its Load one layer, an nn.Sequential')
        verify_loss(loss_fn)
        verify_maker(optimizer, 'layer')
        verify_reading(reading)
        verify_time_limit(time_limit)
        self.module, self.depth, self.loss_fn = module, verify_depth(depth, 'units'), loss_fn
        self._keep = 'input' if recompute else 'graph'
        self.device = device_of(device)
        if together := is_distributed(None, time_limit) and dist.get_world_size(group) > 1:
            is_mean(loss_fn)   # or raise
        self._ranks = Together(group, reading, time_limit) if together else Alone()
        self._turn, self.spans = turn_of(module), []
        self.store = store or HostStore()
        self._versions = Versions(self.store, states or self.store, self._ranks.least)
        self._shapes = {parameter: parameter.shape for parameter in module.parameters()}
        self._open(optimizer)

    def _open(self, optimizer: MakeOptimizer) -> None:
        is_new = not self._versions.exists
        layout = fingerprint([*self.module.named_parameters(), *self.module.named_buffers()])
        sample = verify_made(optimizer([nn.Parameter(torch.zeros(1))]))
        kind, self._made = type(sample).__name__, options(sample)   # by what makes optimizers now
        self._facts = {'layout': layout, 'ranks': self._ranks.size, 'rank': self._ranks.rank, 'optimizer': kind}
        if is_new:
            self._ranks.take_rank_0(self.module)
        elif {**self._facts, **self._versions.about['facts']} != self._facts:   # earlier releases say less
            raise ValueError("the store holds another model, states of another optimizer, or was another rank's: it"
                             f' says {self._versions.about["facts"]}, and this is {self._facts}: give this a store '
                             f'of its own')
        elif (made := self._versions.about.get('made')) is not None:
            verify_options(made, self._made)
            self._made = made
        self._units = [*make_units(self.module, self.device, self._ranks, optimizer, self.loss_fn,
                                   self._versions, self.depth)]
        self._pieces = [piece for unit in self._units for piece in unit.pieces]
        #: Of the host, one a layer that trains (one a tile); the learning rate is in their `param_groups`.
        self.optimizers = [piece.optimizer for piece in self._pieces if piece.hosts]
        self.module.to(self.device.torch)   # buffers, for there is nothing else
        self.steps = 0   #: that the model has done, in this run and earlier ones
        if is_new:
            self._commit(0)
        self._restore()

    def _commit(self, steps: int) -> None:
        self._versions.write('buffers', [*self.module.buffers()])
        self._versions.commit({'facts': self._facts, 'steps': steps, 'options': [*map(options, self.optimizers)],
                               'made': self._made})
        self.steps = steps

    @torch.no_grad()
    def _restore(self) -> None:
        """What is not in the stores alone: buffers, options of the optimizers."""
        about = self._versions.about
        self.steps = about['steps']
        for buffer, value in zip(self.module.buffers(), self._versions.read('buffers')):
            buffer.copy_(value)
        for optimizer, written in zip(self.optimizers, about['options']):
            restore_options(optimizer, written)

    def step(self, x: Any, y: Any, chunks: int = 1) -> torch.Tensor:
        """Train on one mini-batch, in `chunks` micro-batches; its loss, a tensor without a graph.

        `x` are the inputs, a tensor or a nesting of tensors cut along their first dimension, and `y` the
        targets; on ranks the rank's own, and the loss is that of all.
        """
        if rows_of(x) != rows_of(y):
            raise ValueError(f'{rows_of(y)} rows of targets for {rows_of(x)} rows of inputs')
        rows = sizes(rows_of(x), verify_chunks(chunks))
        if not self._sees_all(rows) and is_mean(self.loss_fn):
            verify_all_rows_count(self.loss_fn, y)
        with self._turn, self._all_or_nothing():
            with torch.enable_grad(), self.device.active():
                loss = self._train(x, y, rows)
            self._commit(self.steps + 1)
            return loss

    def _sees_all(self, rows: list[int]) -> bool:
        """Does the loss, of a mini-batch cut into micro-batches of so many rows, see all there are?"""
        return len(rows) == self._ranks.size == 1

    def _train(self, x: Any, y: Any, rows: list[int]) -> torch.Tensor:
        context = Context.capture([self.device], self._ranks.seed())
        total = self._ranks.total(sum(rows), self.device.torch)
        if not total:
            raise ValueError('there is nothing to train on: give at least one row')
        shares = [None] if self._sees_all(rows) else [
            count / total if is_mean(self.loss_fn) else 1.0 for count in rows]
        xs, targets = (to_device(scatter(batch, len(rows)), self.device) for batch in (x, y))
        with without_autocast(context):
            loss = self._visits(context).train(xs, [*zip(targets, shares)], self._keep)
        self._ranks.average([*self.module.buffers()], sum(rows) / total)
        return self._ranks.summed(loss if sum(rows) else torch.zeros_like(loss))   # a mean of no rows is nan

    def evaluate(self, x: Any, chunks: int = 1) -> Any:
        """The outputs in evaluation mode, without a graph."""
        count = len(sizes(rows_of(x), verify_chunks(chunks)))
        with self._turn, torch.no_grad(), self.device.active(), self._all_or_nothing(), evaluating(self.module):
            xs = to_device(scatter(x, count), self.device)
            return gather(self._visits(Context.capture([self.device])).evaluate(xs))

    def _visits(self, context: Context) -> Visits:
        visits = Visits(self._units, self.device, self._versions, context, self._ranks, self.depth)
        self.spans = visits.spans   #: what the latest step did, and when
        return visits

    @property
    def times(self) -> Times:
        """Where the time of the latest step went."""
        return Times(*(sum(span.end - span.start for span in self.spans if span.step == step)
                       for step in ('wait', 'compute', 'finish')))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The plain model's, on the host; on ranks all call it."""
        values: dict[torch.Tensor, torch.Tensor] = {}
        for piece in self._pieces:
            values.update(zip(piece.parameters, piece.share.whole(piece.read(self._versions))))
        return {key: values[value] if value in values else value.detach().cpu().clone()
                for key, value in self.module.state_dict(keep_vars=True).items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the values of the plain model's state_dict; states of optimizers stay as they are.

        Raises ValueError, before anything has changed, for other keys or shapes.
        """
        held = self.module.state_dict(keep_vars=True)
        verify_state_dict(state, held, self._shapes)
        values = {tensor: state[key] for key, tensor in held.items()}
        with self._turn, self._all_or_nothing():
            for piece in self._pieces:
                if piece.parameters:
                    whole = [values[parameter].detach().cpu().to(parameter.dtype)
                             for parameter in piece.parameters]
                    piece.write(self._versions, piece.share.own(whole))
            for buffer in self.module.buffers():
                buffer.copy_(values.get(buffer, buffer))
            self._commit(self.steps)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """What the optimizers remember, whole: see fewgpu.optimizer_state. On ranks all call it."""
        return optimizer_state(self.module, self._pieces, self._versions)

    @torch.no_grad()
    def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what `optimizer_state` gave, here or by another engine. Raises KeyError or ValueError, before
        anything has changed, for a parameter that was not saved or is not here."""
        verify_belongs(self.module, state)
        with self._turn, self._all_or_nothing():
            load_optimizer_state(self.module, self._pieces, self._versions, state, self._shapes)
            self._commit(self.steps)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._versions.roll_back()
            self._restore()
            raise
        finally:
            for unit in self._units:
                unit.end()
