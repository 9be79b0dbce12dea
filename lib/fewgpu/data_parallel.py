"""Data parallelism: every rank has the whole model and its own rows; gradients are averaged."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from fewgpu.alike import start_alike
from fewgpu.collectives import broadcast
from fewgpu.data_parallel_trace import Recorder
from fewgpu.group import new_group
from fewgpu.limit import verify_time_limit
from fewgpu.microbatch import rows_of_inputs
from fewgpu.reducer import Reducer


class DataParallel(nn.Module):
    """`DataParallel(module)` trains as `module` would on the rows of all ranks together.

    Usage::

        model = DataParallel(module)                     # on every rank
        optimizer = torch.optim.Adam(model.parameters())
        loss_fn(model(x), y).backward()                  # of rows of its own
        optimizer.step()                                 # the same step on every rank

    After `loss.backward()`, with a loss that is the mean over the rank's own rows, every `.grad` is
    the gradient of the mean over all ranks' rows: a rank with n of N rows counts n/N. The number of
    rows is that of the first tensor among the inputs, or `model.rows` where that is set. Rows of
    several backwards with `no_sync` add up (scale each loss by its share of the rank's rows).

    A sum over the rank's own rows (reduction='sum') cannot be told from a mean here, and is weighted alike:
    gradients are those of the ranks' sums, each times n/N, and not of the sum over all rows. For that, divide
    the loss by the rank's own rows, and multiply the gradients (or the learning rate of SGD) by N.

    - Parameters and buffers start as rank 0's. The keys of the state_dict are the plain module's.
    - A parameter without gradient on this rank counts as zeros if another rank has one for it, and
      gets the average; if none has, `.grad` stays None. A bitmap that rides along tells.
    - The running statistics of batch norm are averaged with the gradients, weighted alike: all rows
      count, and evaluation is the same on all ranks after every backward. (DDP copies rank 0's
      before every forward instead, which waits for it.) Other buffers are left to each rank.
    - `.grad` is a view of a bucket, which the next backward fills again: clone what you keep.

    Args:
        module: the same on all ranks.
        group: the process group of the replicas, by default all ranks; all its ranks make the
            DataParallel at the same time.
        bucket_mb: size of a bucket, in 2^20 bytes.
        time_limit: bounds every wait for another rank, in seconds.
        trace: note what every step does, for `save_trace`; on all ranks or none.

    Raises ValueError if the ranks' modules differ or nothing needs a gradient. `backward` raises
    PeerError, which names the rank, if one died, ended earlier or is late.
    """

    def __init__(self, module: nn.Module, *, group: dist.ProcessGroup | None = None,
                 bucket_mb: float = 25.0, time_limit: float = 60.0, trace: bool = False) -> None:
        super().__init__()
        verify_time_limit(time_limit)
        self.rows: int | None = None   #: rows of the next forwards; None: look at the inputs
        # The module's own tables, and not the module as a child, so that names stay what they are.
        self.__dict__['module'] = module
        for table in ('_parameters', '_buffers', '_modules', '_non_persistent_buffers_set'):
            self.__dict__[table] = getattr(module, table)
        self.training = module.training
        self._group = new_group(group, time_limit, 'DataParallel with trace=True' if trace else 'DataParallel')
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not learned:
            raise ValueError('no parameter of the module requires a gradient: nothing to average')
        start_alike(module, self._group)
        norms = [norm for norm in module.modules()
                 if isinstance(norm, _BatchNorm) and norm.running_mean is not None]
        self._reducer = Reducer(learned, norms, self._group, bucket_mb)
        self._sync = True
        self._recorder = self._reducer.recorder = Recorder(learned, self._group) if trace else None

    def _state(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def _take_state_of(self, rank: int) -> None:
        for tensor in self._state():
            broadcast(tensor.detach(), self._group, rank)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's output."""
        recomputing = self._reducer.busy   # as torch's checkpoint round this model does
        if recomputing and torch._C._current_graph_task_id() == -1:   # no backward goes on
            raise RuntimeError('an earlier backward of this rank stopped halfway, and other ranks '
                               'wait for the rest of it: start all ranks again')
        trained = torch.is_grad_enabled() and not recomputing
        with self._recorder.forward() if self._recorder and trained else nullcontext():
            outputs = self.module(*inputs, **named)
        if trained:
            rows = rows_of_inputs((inputs, named)) if self.rows is None else self.rows
            self._reducer.expect(rows, self._sync)
            leaves = [leaf for leaf in pytree.tree_leaves(outputs)
                      if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            begin = self._reducer.begin if self._sync else None
            if leaves and self._recorder:
                register_multi_grad_hook(leaves, lambda _: self._recorder.backward(begin), mode='any')
            elif leaves and begin:   # else (tensors hidden in an object) a parameter will begin
                register_multi_grad_hook(leaves, lambda _: begin(), mode='any')
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """What is forwarded in here only gathers in this rank's `.grad`; the next backward outside
        averages all of it."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """In here ranks may do different numbers of backwards: one that is through follows the
        others without rows, so those average among themselves. At the end all ranks have the
        parameters and buffers of a rank that worked until the end."""
        yield
        self._reducer.follow()
        self._take_state_of(self._reducer.last_running)

    def save_trace(self, folder: str | PathLike[str]) -> PathLike[str]:
        """Write what the latest step did as `rank-N.json` into a folder, each rank its own, for
        `./workshop.py trace FOLDER`. Raises RuntimeError if nothing was noted, ValueError if there was no step."""
        if self._recorder is None:
            raise RuntimeError('nothing was noted for a trace: make the model with DataParallel(module, trace=True)')
        return self._recorder.save(folder)

    def train(self, mode: bool = True) -> 'DataParallel':
        """As for the module."""
        self.training = mode
        self.module.train(mode)
        return self
