"""Pipeline: training steps of any schedule, on threads of one process or on ranks.

    pipeline = Pipeline(model, [10, 12], schedule='1f1b', chunks=8,
                        loss_fn=nn.functional.cross_entropy,
                        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for x, y in batches:
        loss = pipeline.step(x, y)

The last stage computes the loss, micro-batch by micro-batch, so a backward may begin before all
forwards are done. (With GPipe, the module, the caller computes the loss of the mini-batch.)

Under torchrun or `fewgpu.launch` (or wherever torch.distributed is initialised) every rank runs this
same script, makes the same model, and calls `step` with the same mini-batch; it keeps and trains its
own stages only.
"""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fewgpu.context import Context
from fewgpu.held import Held, MakeOptimizer, device_of_rank, is_distributed, verify_alike, verify_layout
from fewgpu.loss import LossFn, WithLoss, is_mean, target_messages, total
from fewgpu.microbatch import gather, rows_of, scatter, sizes
from fewgpu.partition import turn_of, verify_balance, verify_devices, verify_module
from fewgpu.run import run
from fewgpu.schedule import Message, Schedule, activation, target
from fewgpu.schedule.named import schedule_maker
from fewgpu.schedule.plans import Plans
from fewgpu.skip_routes import routes
from fewgpu.stage import Stage, telling_who_updated
from fewgpu.trace import Timeline
from fewgpu.transport import Mailbox, refuse_devices_around

if TYPE_CHECKING:
    from fewgpu.hybrid import Replicas
    from fewgpu.transport.ranks import Ranks


class Pipeline:
    """A model cut into stages, and a schedule by which they train.

    Arguments:
        module: the layers, an nn.Sequential.
        balance: layers per stage; see `fewgpu.balance`.
        schedule: a name in `fewgpu.schedule.SCHEDULES`, or a function that makes a Schedule from
            (stages, micro-batches). With 'interleaved' and 'v-shape' there are more stages than devices.
        chunks: micro-batches per mini-batch (fewer if there are fewer rows, which 'interleaved' and
            '2bw' refuse unless the schedule fits).
        devices: one a row of the schedule (on ranks: this rank's); by default GPUs, or virtual CPU devices.
        loss_fn: from (output, target) of a micro-batch to its loss: a mean over the rows, or a sum if
            it says reduction='sum' (an attribute, or bound by functools.partial; a lambda cannot say
            so, and is taken for a mean).
        optimizer: makes an optimizer from those of a stage's parameters that are trained. Without, `step`
            adds gradients to the parameters' `.grad`, as a backward does; what follows is the caller's.
        checkpoint: which micro-batches are recomputed: see `fewgpu.schedule.with_recompute`.
        ranks: the ranks that hold the rows of the schedule (`fewgpu.transport.Ranks`); by default
            all of torch.distributed, if it is initialised and `devices` does not list one a row.
        replicas: other pipelines that train the same model (see `fewgpu.hybrid`).
        skips: how long skips travel (see `fewgpu.skip_routes`): 'straight', or 'through' all stages between.
        time_limit: seconds that a device may wait for a message; on ranks it is 60 by default.

    Results equal those of the plain model, trained micro-batch by micro-batch (under 'pipedream'
    and '2bw': by their rule of delayed weights, from an empty pipeline in every step).

    A `step` that raises may have updated some stages and not others; the error says which. Raises
    TypeError for a module, optimizer or loss that cannot be cut into stages, ValueError for a
    balance, schedule or loss that does not fit, IndexError if there are too few devices.
    """

    def __init__(self, module: nn.Sequential, balance: Iterable[int], *,
                 schedule: str | Callable[[int, int], Schedule] = '1f1b', chunks: int = 1,
                 devices: Sequence[Any] | None = None, loss_fn: LossFn,
                 optimizer: MakeOptimizer | None = None, checkpoint: str = 'never',
                 ranks: 'Ranks | None' = None, replicas: 'Replicas | None' = None,
                 skips: str = 'straight', time_limit: float | None = None) -> None:
        verify_module(module)
        verify_devices(devices)
        self.balance = verify_balance(module, balance)
        chunks = operator.index(chunks)
        if chunks < 1:
            raise ValueError(f'a mini-batch has at least one micro-batch: chunks is {chunks}')
        if isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError('every stage has an optimizer of its own: pass what makes it, as '
                            'optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)')
        self.chunks, self.checkpoint, self.time_limit = chunks, checkpoint, time_limit
        self.loss_fn, self._last = loss_fn, len(self.balance) - 1
        if ranks is None and is_distributed(devices):
            from fewgpu.transport.ranks import Ranks   # threads can do without torch.distributed
            ranks = Ranks(time_limit=60.0 if time_limit is None else time_limit)
        self.ranks, self.replicas = ranks, replicas
        count = ranks.size if ranks else None if devices is None else len(devices)
        self._plans = Plans(schedule_maker(schedule, len(self.balance), count), chunks, checkpoint,
                            routes(module, self.balance, skips))
        layout = self._plans.layout
        is_mean(loss_fn)   # or raise
        verify_layout(layout, ranks and ranks.size, replicas=bool(replicas), updates=optimizer is not None)
        self._rows = [ranks.index] if ranks else [*range(len(layout.rows))]
        self._row_of = layout.device_of
        if ranks and devices is None:
            devices = [device_of_rank(ranks.index)]
        if ranks:
            verify_alike(ranks, module, {
                'balance': self.balance, 'schedule': layout.name, 'chunks': chunks,
                'checkpoint': checkpoint, 'an optimizer': optimizer is not None})
        self._held = Held(module, self.balance, layout, self._rows, devices)
        self.module, self.devices = self._held.module, self._held.devices   #: of this process
        self.optimizers = self._held.optimizers(optimizer)   #: by stage
        if self._last in self._held.partitions:
            self._with_loss = WithLoss(self._held.partitions[self._last], loss_fn).to(self.devices[-1].torch)
        self._turn = turn_of(module)
        self._names = ([f'rank {rank}' for rank in ranks.members] if ranks else
                       [device.name for device in self.devices])
        if replicas:
            replicas.start_alike(self.module)
        self._latest, self._spans = layout, [[] for _ in layout.rows]   # the schedule and its spans

    def step(self, x: Any, y: Any) -> torch.Tensor:
        """Train on one mini-batch; its loss, a tensor without a graph (on every rank).

        `x` are the inputs, a tensor or a nesting of tensors cut along their first dimension, and
        `y` the targets. On ranks only the one with the first stage needs x, and the one with the
        last stage y; the others may pass None.
        """
        with self._together(), torch.enable_grad():
            rows, seed = self._agree(x)
            losses = self._execute('training', x, y, rows, seed)
            every = self._plans.of('training', len(rows), True)[0].update_every
            return self._tell_all(losses and total(losses, rows, every, self.loss_fn))

    def eval_step(self, x: Any, y: Any = None) -> Any:
        """The loss of a mini-batch in evaluation mode (on ranks: give y to all or none of them).

        Without y the outputs (on ranks: where the last stage is, None elsewhere).
        """
        with self._together(), torch.no_grad():
            modes = {part: part.training for part in self.module.modules()}
            self.module.eval()
            try:
                rows, seed = self._agree(x)
                values = self._execute('evaluation', x, y, rows, seed)
            finally:
                for part, mode in modes.items():
                    part.training = mode
            if y is not None:
                return self._tell_all(values and total(values, rows, None, self.loss_fn))
            return gather(values) if values else None

    @property
    def trace(self) -> Timeline:
        """What the latest step did, a row a device; on ranks, only this rank's row is filled (see
        `gather_trace`). Bytes are counted on devices with a ledger: `devices[0].meter()` before."""
        return Timeline.of(self._spans, self._names)

    def gather_trace(self) -> Timeline:
        """On ranks: `trace` of all; all call it. (Clocks of several machines, and GPUs, are not compared.)"""
        rows = []
        for row, ops in enumerate(self._latest.rows if self.ranks else ()):
            mine = [tuple(span[1:]) for span in self._spans[row]]
            fields = self.ranks.tell(row, mine)
            rows.append([(op, *values) for op, values in zip(ops, fields)])
        return Timeline.of(rows, self._names) if self.ranks else self.trace

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of the stages of this process."""
        return self.module.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Of the stages of this process, under the plain model's keys."""
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the own entries out of the plain model's state_dict, or any part of it that has
        them; raises as torch does if one is missing."""
        own = self.module.state_dict().keys()
        self.module.load_state_dict({key: value for key, value in state.items() if key in own})

    def __reduce_ex__(self, protocol: int) -> Any:
        raise TypeError('a Pipeline is not copied or pickled: copy or save its state_dict(), and '
                        'make another Pipeline')

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

    def _agree(self, x: Any) -> tuple[list[int], int]:
        """The rows of every micro-batch, and the seed of the step."""
        rows = None if x is None else rows_of(x)
        if rows is None and 0 in self._held.partitions:
            raise TypeError('the first stage needs the inputs: step(x, y)')
        told, seed = rows, int(torch.randint(2**62, (), dtype=torch.int64, device='cpu'))
        if self.ranks:
            told, seed = self.ranks.tell(self._row_of[0], (rows, seed))
        if rows not in (None, told):
            raise ValueError(f'this rank was given {rows} rows, the rank of the first stage {told}: '
                             f'every rank takes the same mini-batch')
        if self.replicas:
            self.replicas.begin(told, self.devices[0].torch, is_mean=is_mean(self.loss_fn))
        return sizes(told, self.chunks), seed

    def _execute(self, purpose: str, x: Any, y: Any, rows: list[int], seed: int) -> list[Any]:
        """Run the schedule; what the last stage returned, a value a micro-batch, if it is here."""
        whole, schedule = self._plans.of(purpose, len(rows), y is not None or purpose == 'training')
        feed: dict[Message, Any] = {}
        if 0 in self._held.partitions:
            feed |= {activation(0, i): part for i, part in enumerate(scatter(x, len(rows)))}
        collect = []
        if self._last in self._held.partitions:
            feed |= target_messages(y, rows, whole, self.loss_fn)
            collect = [activation(self._last + 1, i) for i in range(len(rows))]
        context = Context.capture(self.devices, seed)
        stages = {s: self._stage(s, schedule).begin(context, len(rows)) for s in self._held.partitions}
        mailbox = self.ranks.mailbox(schedule) if self.ranks else Mailbox(
            schedule, time_limit=self.time_limit)
        self._latest = schedule
        with telling_who_updated(stages):
            values, self._spans = run(schedule, self._rows, self.devices, stages, feed, collect,
                                      whole=whole, mailbox=mailbox)
        return values

    def _stage(self, s: int, schedule: Schedule) -> Stage:
        takes_targets = any(op.message == target(s, 0) for op in schedule.rows[self._row_of[s]])
        module = self._with_loss if takes_targets else self._held.partitions[s]
        return Stage(s, module, self._held.device_of[s], self.optimizers.get(s),
                     self.replicas and self.replicas.average)

    def _tell_all(self, loss: torch.Tensor | None) -> torch.Tensor:
        """The loss, which the rank of the last stage has, on all ranks, and of all replicas."""
        if self.replicas and self._last in self._held.partitions:
            loss = self.replicas.loss(loss)
        if not self.ranks:
            return loss
        return self.ranks.tell(self._row_of[self._last], loss)
