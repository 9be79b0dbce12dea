"""ZeRO: replicas that share out what each would hold again: optimizer states, gradients, parameters.

    bytes a rank, of Psi parameters, N ranks      parameters  gradients  optimizer    a step sends
    plain data parallelism                             2 Psi      2 Psi      K Psi           2 Psi
    stage 1, optimizer states                          2 Psi      2 Psi    K Psi/N           2 Psi
    stage 2, gradients too                             2 Psi    2 Psi/N    K Psi/N           2 Psi
    stage 3, parameters too                          2 Psi/N    2 Psi/N    K Psi/N           3 Psi

(Rajbhandari et al., arXiv 1910.02054, sections 5 and 7. The 2s are bytes of half precision; K = 12, a
precise copy, momentum and variance. What is sent: numbers, times (N-1)/N.)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from fewgpu.alike import start_alike
from fewgpu.buckets import average
from fewgpu.collectives import all_gather
from fewgpu.group import new_group
from fewgpu.limit import verify_time_limit
from fewgpu.maker import verify_maker
from fewgpu.microbatch import rows_of_inputs
from fewgpu.optimizer_state import verify_belongs
from fewgpu.zero.gathering import Gathering
from fewgpu.zero.shards import Line
from fewgpu.zero.units import make_units
from fewgpu.zero.whole import clip, made, spread_overflow
from fewgpu.zero.states import load_optimizer_state, optimizer_state


class ZeRO(nn.Module):
    """`ZeRO(module, stage=..., optimizer=...)` trains as `module` would on the rows of all ranks.

    Usage::

        model = ZeRO(module, stage=3, optimizer=torch.optim.Adam)   # on every rank
        loss_fn(model(x), y).backward()                             # of rows of its own
        model.step()

    The children of the module (of an nn.Sequential, the layers) are its units: gathered, reduced and
    freed as a whole. Choose children that are large enough to be worth a message, and small enough
    that two or three fit beside the rest. In stage 3 the parameters between forwards are shapes on
    torch's device 'meta'; `state_dict()` has their values.

    - `backward` adds to the gradients, until `step` uses and drops them, that of the mean over all
      ranks' rows: a rank with n of N rows counts n/N. Rows are counted as by DataParallel, or `rows`.
      For that the loss is a mean over the rank's own rows; what becomes of a sum, see DataParallel.
      Scale losses of several backwards before a step by their shares of the mini-batch.
      In stage 1 gradients move once, in `step`; in stages 2 and 3 in every backward, unless `no_sync`.
    - The optimizer is made over this rank's shard of every unit, a flat tensor: it must treat each
      number alone, as SGD, Adam, AdamW, RMSprop and Adagrad do. Optimizers that look at a parameter
      as a whole (LAMB, LARS: its norm; Adafactor, Muon: its rows) are wrong here.
    - A parameter without a gradient counts as one with zeros. Those that need none stay whole on every
      rank, as buffers do. Running statistics of batch norm are averaged in `step`.
    - `precision=torch.bfloat16`: parameters, buffers, floating-point inputs and gradients have this
      dtype, and each shard a float32 copy, which the optimizer trains. Autocast works, too, but its
      rounded copies of the parameters live until the backward.
    - `optimizer` is there for schedulers of learning rates, `units` to look at, `bytes_sent` to count.
    - All ranks do the same forwards and backwards, and use the units in the same order.

    Args:
        module: the same on all ranks; it belongs to the model from then on. All start as rank 0.
        stage: 1, 2 or 3.
        optimizer: makes one for the parameters that it is given.
        precision: what to compute with, if not with what the module has.
        ahead: gather the next unit while one computes (stage 3).
        group: the process group of the replicas, by default all ranks.
        time_limit: bounds every wait for another rank, in seconds.

    Raises ValueError for modules that cannot be shared out; PeerError, which names it, for a rank that died.
    """

    def __init__(self, module: nn.Module, *, stage: int,
                 optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
                 precision: torch.dtype | None = None, ahead: bool = True,
                 group: dist.ProcessGroup | None = None, time_limit: float = 60.0) -> None:
        super().__init__()
        if stage not in (1, 2, 3):
            raise ValueError(f'stage is 1, 2 or 3, not {stage!r}; DataParallel is stage 0')
        verify_maker(optimizer, 'rank')
        verify_time_limit(time_limit)
        self.rows: int | None = None   #: rows of the next forwards; None: look at the inputs
        self.stage, self._precision = stage, precision
        # The module's own tables, and not the module as a child, so that names stay what they are.
        self.__dict__['module'] = module
        for table in ('_parameters', '_buffers', '_modules', '_non_persistent_buffers_set'):
            self.__dict__[table] = getattr(module, table)
        self.training = module.training
        self._line = Line(new_group(group, time_limit, f'ZeRO of stage {stage}'))
        self._line.do(start_alike, module, self._line.notes)
        owners = make_units(module, self._line, stage, precision)
        self.units = [unit for _, unit in owners]
        self._gathering = Gathering(owners, self._line, ahead=ahead, sync=stage > 1)
        self._norms = [norm for norm in module.modules()
                       if isinstance(norm, _BatchNorm) and norm.running_mean is not None]
        self.optimizer = made(optimizer, [unit.trained for unit in self.units])

    @property
    def bytes_sent(self) -> int:
        """By this rank so far, for parameters and gradients."""
        return self._line.group.bytes_sent

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's output."""
        if torch.is_grad_enabled():
            rows = rows_of_inputs((inputs, named)) if self.rows is None else self.rows
            self._gathering.weight = self._line.submit(self._weight_of, rows)
        inputs, named = pytree.tree_map_only(torch.Tensor, self._rounded, (inputs, named))
        try:
            return self.module(*inputs, **named)
        finally:
            self._gathering.end()

    def _weight_of(self, rows: int) -> float:
        every = [torch.tensor([rows], device=self.units[0].trained.device)
                 for _ in range(self._line.group.size)]
        all_gather(every, self._line.notes)
        total = int(sum(every))
        return rows / total if total else 1 / len(every)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._precision) if self._precision and tensor.is_floating_point() else tensor

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """What is forwarded in here only gathers on this rank, whole, until `step` or a backward of
        what was forwarded outside: fewer messages, and the memory of stage 1."""
        before, self._gathering.sync = self._gathering.sync, False
        try:
            yield
        finally:
            self._gathering.sync = before

    # The update

    def step(self, scaler: 'torch.amp.GradScaler | None' = None) -> None:
        """Update the parameters, and drop the gradients.

        With a `scaler` this is its `step(optimizer)`: the update is skipped on all ranks if a gradient
        of any rank is not finite. Call `scaler.update()` afterwards. Raises RuntimeError without a
        gradient.
        """
        gradients = self._collect()
        if scaler is None:
            self.optimizer.step()
        else:
            spread_overflow(gradients, self._line)
            scaler.step(self.optimizer)
        self.zero_grad()
        jobs = [unit.refresh() for unit in self.units]
        self._average_statistics()
        for job in jobs:
            job.result() if job else None

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Before `clip_grad_norm`: `scaler.unscale_`, which on all ranks finds the same."""
        spread_overflow(self._collect(), self._line)
        scaler.unscale_(self.optimizer)

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_ over the whole model: scale the gradients so that their
        norm is at most `max_norm`; returns the norm before."""
        return clip(self._collect(), max_norm, self._line)

    def _collect(self) -> list[torch.Tensor]:
        """The gradients of all ranks, of this rank's shards."""
        for unit in self.units:
            unit.reduce()
        self._line.wait()
        for unit in self.units:
            unit.hand_over()
        gradients = [unit.trained.grad for unit in self.units if unit.trained.grad is not None]
        if not gradients:
            raise RuntimeError('there is no gradient to update with: call backward on a loss that '
                               'depends on the model before each step')
        return gradients

    def _average_statistics(self) -> None:
        changed = [statistic for norm in self._norms if norm.training
                   for statistic in (norm.running_mean, norm.running_var)]
        if changed:
            weight = self._gathering.weight.result()
            self._line.do(partial(average, changed, self._line.notes, weight))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        for unit in self.units:
            unit.drop_gradients()

    # States, under the names of the plain module

    @contextmanager
    def _with_values(self) -> Iterator[list[list[torch.Tensor]]]:
        """Inside, the module's parameters are whole, as they are trained."""
        with ExitStack() as places:
            values = [unit.values() for unit in self.units]
            for unit, tensors in zip(self.units, values):
                places.enter_context(unit.place(tensors))
            yield values

    def state_dict(self, *args: Any, **named: Any) -> dict[str, Any]:
        """That of the plain module, whole, on every rank; all call it (with a precision: the float32 copies)."""
        with self._with_values():
            return super().state_dict(*args, **named)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """That of the plain module. Every rank calls it, with the same."""
        if assign:
            raise ValueError('shards cannot be assigned whole tensors: leave assign=True out')
        with self._with_values() as values:
            missing = super().load_state_dict(state_dict, strict)
            jobs: list[Future | None] = []
            for unit, tensors in zip(self.units, values):
                unit.trained.detach().copy_(unit.own(unit.flat_of(tensors)))
                jobs.append(unit.refresh())
        for job in jobs:
            job.result() if job else None
        return missing

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state by parameter, whole, on every rank; every rank calls it:
        {'state': {name: {'exp_avg': tensor like the parameter, ...}}, 'options': {name: {'lr': ...}}}, the form
        that all engines have (see fewgpu.optimizer_state)."""
        return optimizer_state(self.optimizer, self.units)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """What `optimizer_state` gave, on any number of ranks, in any stage, or of another engine. Raises
        ValueError if it belongs to other parameters."""
        verify_belongs(self.module, state)
        load_optimizer_state(self.optimizer, self.units, state)

    def train(self, mode: bool = True) -> 'ZeRO':
        """As for the module."""
        self.training = mode
        self.module.train(mode)
        return self

    def _apply(self, *_: Any, **__: Any) -> 'ZeRO':
        raise RuntimeError('shards stay where they are and what they are: move or convert the module '
                           'before ZeRO(module, ...)')
