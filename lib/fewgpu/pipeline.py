"""Pipeline: training steps of any schedule, on threads of one process or on ranks.

    pipeline = Pipeline(model, [10, 12], schedule='1f1b', chunks=8,
                        loss_fn=nn.functional.cross_entropy,
                        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for x, y in batches:
        loss = pipeline.step(x, y)       # or, all at once: losses = pipeline.train(batches)

The last stage computes the loss, micro-batch by micro-batch, so a backward may begin before all forwards are
done. (With GPipe, the module, the caller computes it.) Under torchrun or `fewgpu.launch` (or wherever
torch.distributed is initialised) every rank runs this same script, makes the same model, and calls `step` with
the same mini-batch; it keeps and trains its own stages only.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fewgpu.context import Context, evaluating
from fewgpu.group import is_distributed
from fewgpu.held import (Held, MakeOptimizer, device_of_rank, of_all_replicas, take_first_replicas, verify_alike,
                         verify_layout, verify_options)
from fewgpu.held_state import HeldState
from fewgpu.loss import LossFn, is_mean
from fewgpu.loss_scale import LossScale
from fewgpu.microbatch import gather, rows_of, sizes, verify_chunks
from fewgpu.minibatches import MiniBatches, pairs, verify_same_rows
from fewgpu.partition import turn_of, verify_balance, verify_devices, verify_module
from fewgpu.pipemare import with_delays
from fewgpu.run import run, telling_who_updated
from fewgpu.schedule import Schedule, activation
from fewgpu.schedule.named import schedule_makers
from fewgpu.schedule.plans import Plans
from fewgpu.skip_routes import routes
from fewgpu.traced import Traced
from fewgpu.updates import updating, verify_can_wait, verify_meets_newest
from fewgpu.transport import Mailbox, refuse_devices_around

if TYPE_CHECKING:
    from fewgpu.hybrid import Replicas
    from fewgpu.transport.ranks import Ranks

Plan = tuple[Schedule, Schedule]   # without and with its messages


class Pipeline(HeldState, Traced):
    """A model cut into stages, and a schedule by which they train.

    Arguments:
        module: the layers, an nn.Sequential.
        balance: layers per stage; see `fewgpu.balance`.
        schedule: a name in `fewgpu.schedule.SCHEDULES`, or a function of (stages, micro-batches) that makes one. With
            'interleaved' and 'v-shape' there are more stages than devices; with 'gems', or partial(pipedream,
            replicas=(2, 1)), stages live on several, as replicas.
        chunks: micro-batches per mini-batch (fewer if there are fewer rows, if the schedule allows it).
        devices: one a row of the schedule (on ranks: this rank's); by default GPUs, or virtual CPU devices.
        loss_fn: from (output, target) of a micro-batch to its loss: a mean over the rows, or a sum if it says
            reduction='sum' (an attribute, or bound by functools.partial; a lambda is taken for a mean).
        optimizer: makes an optimizer from those of a stage's parameters that are trained. Without, `step`
            adds gradients to the parameters' `.grad`, as a backward does; what follows is the caller's.
        checkpoint: which micro-batches are recomputed: see `fewgpu.schedule.with_recompute`.
        ranks: that hold the rows of the schedule; by default all of torch.distributed, unless `devices` has one a row.
        replicas: other pipelines that train the same model (see `fewgpu.hybrid`).
        skips: how long skips travel (see `fewgpu.skip_routes`): 'straight', or 'through' all stages between.
        time_limit: seconds that a device may wait for a message; on ranks it is 60 by default.
        loss_scale: a `LossScale`, for float16. A schedule that flushes then updates when all stages are through, all
            of them or (after an overflow) none; under another one each stage leaves out its own updates.

    Results equal those of the plain model, trained micro-batch by micro-batch ('pipedream', '2bw' and 'pipemare': by
    their rule of delayed weights, from an empty pipeline in every `step` or `train`).

    Replicas of a stage start alike, and have the same parameters after every step; `module`, `parameters()` and
    `state_dict()` are those of the first one in this process. Buffers, such as the statistics of batch norm, stay each
    replica's own, until those of `module` are changed between two steps. `optimizers` has one a replica.

    What raises may have updated some stages and not others; the error says which. Raises TypeError for a module,
    optimizer or loss that cannot be cut into stages, ValueError for what does not fit, IndexError for too few devices.
    """

    def __init__(self, module: nn.Sequential, balance: Iterable[int], *,
                 schedule: str | Callable[[int, int], Schedule] = '1f1b', chunks: int = 1,
                 devices: Sequence[Any] | None = None, loss_fn: LossFn,
                 optimizer: MakeOptimizer | None = None, checkpoint: str = 'never', ranks: 'Ranks | None' = None,
                 replicas: 'Replicas | None' = None, skips: str = 'straight', time_limit: float | None = None,
                 loss_scale: LossScale | None = None) -> None:
        verify_module(module)
        verify_devices(devices)
        self.balance, chunks = verify_balance(module, balance), verify_chunks(chunks)
        verify_options(optimizer, loss_scale, time_limit)
        self.chunks, self.checkpoint, self.time_limit, self.loss_scale = chunks, checkpoint, time_limit, loss_scale
        self.loss_fn, self._last = loss_fn, len(self.balance) - 1
        if ranks is None and is_distributed(devices, time_limit):
            from fewgpu.transport.ranks import Ranks   # threads can do without torch.distributed
            ranks = Ranks(time_limit=60.0 if time_limit is None else time_limit)
        self.ranks, self.replicas = ranks, replicas
        count = ranks.size if ranks else None if devices is None else len(devices)
        self._plans = Plans(*schedule_makers(schedule, len(self.balance), chunks, count), chunks, checkpoint,
                            routes(module, self.balance, skips))
        layout = self._plans.layout
        verify_layout(layout, ranks and ranks.size, replicas=replicas.size if replicas else 1,
                      updates=optimizer is not None, is_mean=is_mean(loss_fn))
        self._rows = [ranks.index] if ranks else [*range(len(layout.rows))]
        self._homes = layout.devices_of   # the rows that hold each stage
        devices = [device_of_rank(ranks.index)] if ranks and devices is None else devices
        if ranks:
            verify_alike(ranks, module, {
                'balance': self.balance, 'schedule': layout.name, 'chunks': chunks, 'checkpoint': checkpoint,
                'an optimizer': optimizer is not None, 'loss_scale': loss_scale})
        self._held = Held(module, self.balance, layout, self._rows, devices, loss_fn, optimizer)
        self.module, self.devices = self._held.module, self._held.devices   #: of this process
        self.optimizers = self._held.optimizers = with_delays(self._held.optimizers, self._plans)   #: by (row, stage)
        self._turn = turn_of(module)
        self._names = [f'rank {rank}' for rank in ranks.members] if ranks else [d.name for d in self.devices]
        take_first_replicas(self._held, layout, ranks, replicas)
        self._latest, self._spans, self._arrived = layout, [[] for _ in layout.rows], {}   # of a schedule: its spans

    def step(self, x: Any, y: Any, *, update: bool = True) -> torch.Tensor:
        """Train on one mini-batch; its loss, a tensor without a graph (on every rank).

        `x` are the inputs, a tensor or a nesting of tensors cut along their first dimension, and `y` the targets. On
        ranks only those with the first stage need x, and those with the last stage y; the others may pass None. With
        `update=False` gradients are added to the parameters' `.grad`, as a backward does, for the next step that
        updates; a schedule that updates within a step cannot wait.
        """
        verify_can_wait(self._plans.layout, update)
        with self._together(), torch.enable_grad():
            batches, seed = self._agree([x], [y])
            return self._train(self._plans.of('training', *batches.counts, True), batches, seed, update)[0]

    def train(self, batches: Iterable[tuple[Any, Any]]) -> list[torch.Tensor]:
        """Train on many mini-batches (x, y), and the pipeline does not drain in between; their losses.

        A device begins with the next mini-batch while others are in the last one. Every mini-batch is cut
        as in `step`. A schedule that flushes gives the weights that `step` gives (dropout aside). Others
        follow their paper: 'pipedream' updates after every micro-batch (chunks=1 makes that a mini-batch),
        '2bw' and 'pipemare' after every mini-batch. To change the learning rate, call it with fewer.
        Raises as `step` does, ValueError for an empty list or with replicas.
        """
        with self._together(), torch.enable_grad():
            xs, ys = pairs(batches)
            if self.replicas:
                raise ValueError('pipelines with replicas train step by step: call step(x, y)')
            if self.loss_scale and self._plans.layout.update_every is None:   # whose stages wait for each other
                return [self.step(x, y) for x, y in zip(xs, ys)]
            batches, seed = self._agree(xs, ys)
            return self._train(self._plans.long_run(batches.counts), batches, seed)

    def eval_step(self, x: Any, y: Any = None) -> Any:
        """The loss of a mini-batch in evaluation mode (on ranks: give y to all or none of them). Without y the
        outputs (on ranks: where the last stage is, None elsewhere)."""
        with self._together(), torch.no_grad():
            with evaluating(self.module):   # copies follow: see Held.align
                batches, seed = self._agree([x], [y])
                plan = self._plans.of('evaluation', *batches.counts, y is not None)
                values = self._execute(plan, batches, seed)
            if y is not None:
                return self._tell_all(batches.losses(values, None, self.loss_fn))[0]
            return gather(values) if values and self._held.holds(self._last) else None

    def close(self) -> None:
        """Leave the ranks; on threads there is nothing to do."""
        if self.ranks:
            self.ranks.close()

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Inside, the layers are this call's, and an error is told to the other ranks."""
        refuse_devices_around(self.devices)   # before a lock that this thread's caller may hold
        with self._turn:
            try:
                yield
            except BaseException as error:
                if self.ranks:
                    self.ranks.abort(error)
                raise

    def _agree(self, xs: Sequence[Any], ys: Sequence[Any]) -> tuple[MiniBatches, int]:
        """The mini-batches, cut as on the other ranks, and the seed of the step."""
        rows = [None if x is None else rows_of(x) for x in xs]
        if None in rows and self._held.holds(0):
            raise TypeError('the first stage needs the inputs: step(x, y)')
        told, seed = rows, int(torch.randint(2**62, (), dtype=torch.int64, device='cpu'))
        if self.ranks:
            told, seed = self.ranks.tell(self._homes[0][0], (rows, seed))
        verify_same_rows(rows, told)
        if self.replicas:
            needed = xs if self._held.holds(0) else None, ys if self._held.holds(self._last) else None
            self.replicas.begin(told[0], seed, needed, self.devices[0].torch, is_mean=is_mean(self.loss_fn))
        return MiniBatches(xs, ys, [sizes(count, self.chunks) for count in told]), seed

    def _train(self, plan: Plan, batches: MiniBatches, seed: int, update: bool = True) -> list[torch.Tensor]:
        with updating(self.optimizers.values(), self.loss_scale, self._all, update=update,
                      within=plan[0].update_every is not None) as at_once:
            values = self._execute(plan, batches, seed, updates=at_once)
        return [*self._tell_all(batches.losses(values, plan[0].update_every, self.loss_fn))]

    def _all(self, own: bool) -> bool:
        """Is it so in all processes of this pipeline?"""
        return all([self.ranks.tell(row, own) for row in range(self.ranks.size)]) if self.ranks else own

    def _execute(self, plan: Plan, batches: MiniBatches, seed: int, updates: bool = True) -> list[Any]:
        """Run a schedule; what the last stage returned, a value a micro-batch, if it is known here."""
        whole, schedule = plan
        ends = [s for s in {0, self._last} if self._held.holds(s)]
        scale = self.loss_scale.scale if self.loss_scale else 1.0
        messages = {message: value for message, value in batches.messages(whole, self.loss_fn, ends, scale).items()
                    if whole.receiver_of(message) in self._rows}
        own = [i for i in range(whole.micro_batches) if whole.device_at(self._last, i) in self._rows]
        context = Context.capture(self.devices, seed)
        batches.verify_for(self.module)
        verify_meets_newest(whole, context, self.devices)
        self._held.align()
        average = self.replicas.average if self.replicas else (
            self.loss_scale.unscaled_or_none if self.loss_scale and updates else None)
        stages = [self._held.begin(row, schedule, context, average, batches, updates=updates) for row in self._rows]
        self._latest, self._spans, limit = schedule, [[] for _ in schedule.rows], self.time_limit
        mailbox = self.ranks.mailbox(schedule) if self.ranks else Mailbox(schedule, time_limit=limit)
        self._arrived = mailbox.arrived
        with telling_who_updated(stages, 'weights' if self.optimizers else 'gradients'), self._held.noting_buffers():
            values, _ = run(schedule, self._rows, self.devices, stages, messages,
                            [activation(self._last + 1, i) for i in own],
                            whole=whole, mailbox=mailbox, spans=self._spans)
        return of_all_replicas(self.ranks, self._homes[self._last], dict(zip(own, values)))

    def _tell_all(self, losses: torch.Tensor | None) -> torch.Tensor:
        """The losses, which the first rank of the last stage has, on all ranks, and of all replicas."""
        if self.replicas and self._held.holds(self._last):
            losses = self.replicas.loss(losses)
        return self.ranks.tell(self._homes[self._last][0], losses) if self.ranks else losses
