"""The averaging of gradients that goes on beside a backward: who does what, and in which order.

    thread of the backward   begin | ready ready ready ready ready ready ready ready | end
    communication thread       agree on rows | bucket 0 | bucket 1 | bucket 2 ...

Buckets hold the gradients in reverse order of the parameters, as they come. All ranks reduce them
in the same order, whichever is complete first, in a thread and with a group of their own, so that
nothing mixes with other traffic. (Li et al., PyTorch Distributed, VLDB 2020, section 3.2; from
memory)
"""

import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import Variable

from fewgpu.buckets import Bucket, cut
from fewgpu.collectives import Group, PeerError, all_gather, all_reduce

if TYPE_CHECKING:
    from fewgpu.data_parallel_trace import Recorder

_ENDED = -1   # in place of a number of rows: this rank has no more of them


class Reducer:
    """Averages the gradients of `parameters`, and the running statistics of `norms`, over `group`,
    weighted by rows."""

    def __init__(self, parameters: Sequence[nn.Parameter], norms: Sequence[nn.Module], group: Group,
                 bucket_mb: float) -> None:
        self._group = group
        self._thread = ThreadPoolExecutor(1, 'data parallel')   # ends when nobody refers to it
        self._jobs: list[Future] | None = None   # of the backward that goes on now
        self._expecting = False                  # whether the next gradient begins a reduction
        self._rows: int | None = None            # forwarded since the latest reduction began
        self._latest_rows = 0                    # of that
        self._weight = 0.0                       # of this rank in the latest reduction
        self.last_running = 0                    #: a rank that took part in it
        self.recorder: 'Recorder | None' = None  #: who notes what is exchanged when
        self._make_buckets(list(reversed(parameters)), norms, bucket_mb)

    def _make_buckets(self, parameters: list[nn.Parameter], norms: Sequence[nn.Module],
                      bucket_mb: float) -> None:
        # A bitmap and the statistics ride along behind the gradients: small messages cost latency.
        used = parameters[-1].new_zeros(len(parameters), requires_grad=False)
        self._parameters, self._is_used = parameters, used
        self._statistics = [partial(getattr, norm, name) for norm in norms
                            for name in ('running_mean', 'running_var')]
        self._norms = [norm for norm in norms for _ in range(2)]
        self._sources = [*(partial(getattr, parameter, 'grad') for parameter in parameters),
                         lambda: used, *self._statistics]
        tensors = [*parameters, used, *(statistic() for statistic in self._statistics)]
        self._parts = cut(tensors, bucket_mb)
        self._buckets = [Bucket([tensors[index] for index in part]) for part in self._parts]
        alive = weakref.ref(self)   # the parameters live longer, and so would the hooks
        places = {index: which for which, part in enumerate(self._parts) for index in part}
        hooks = [parameter.register_post_accumulate_grad_hook(
                     partial(_ready, alive, places[index], index))
                 for index, parameter in enumerate(parameters)]
        weakref.finalize(self, lambda: [hook.remove() for hook in hooks])

    @property
    def busy(self) -> bool:
        """Whether a backward goes on, or stopped halfway."""
        return self._jobs is not None

    def expect(self, rows: int, sync: bool) -> None:
        """A forward of `rows` rows is done; its backward begins a reduction if `sync`."""
        self._rows = (self._rows or 0) + rows
        self._expecting = sync

    def begin(self) -> None:
        """A backward begins, if it has not begun."""
        if self.busy:
            return
        self._jobs, self._next, self._expecting = [], 0, False
        self._missing = [set(part) for part in self._parts]
        if self._rows is not None:   # else this is another backward of the same forwards
            self._rows, self._latest_rows = None, self._rows
        self._submit(self._agree_on_rows, self._latest_rows)
        Variable._execution_engine.queue_callback(self._end)   # called before `backward` returns

    def ready(self, which: int, index: int) -> None:
        """The gradient of parameter `index`, in bucket `which`, is complete."""
        if self._expecting:
            self.begin()
        if not self.busy:   # no_sync
            return
        if index not in self._missing[which]:
            raise RuntimeError('a parameter received its gradient twice in one backward, as nested '
                               'backwards do: use torch.utils.checkpoint with use_reentrant=False')
        self._missing[which].remove(index)
        while not self._missing[self._next]:   # the last bucket misses the bitmap until the end
            self._reduce_next()

    def _end(self) -> None:
        self._is_used.copy_(torch.tensor([p.grad is not None for p in self._parameters]))
        while self._next < len(self._parts):   # also those of parameters that had no part in it
            self._reduce_next()
        self._jobs[-1].result()
        self._jobs = None
        if self.recorder:
            self.recorder.compare_clocks()
        views = iter([view for bucket in self._buckets for view in bucket.views])
        gradients = [next(views) for _ in self._parameters]
        for parameter, gradient, is_used in zip(self._parameters, gradients, next(views).tolist()):
            if is_used:   # on any rank
                parameter.grad = gradient
        self._keep_statistics(list(views))

    @torch.no_grad()
    def _keep_statistics(self, averages: list[torch.Tensor]) -> None:
        """Of norms in training: their backward does not read them, so graphs whose backward is
        still to come stay valid."""
        changed = [(statistic(), average) for norm, statistic, average
                   in zip(self._norms, self._statistics, averages) if norm.training]
        with torch.autograd._unsafe_preserve_version_counter(tuple(own for own, _ in changed)):
            for own, average in changed:
                own.copy_(average)

    def follow(self) -> None:
        """Take part with no rows in the reductions of the others, until they have ended, too."""
        def go_on() -> None:
            while self._agree_on_rows(_ENDED):
                for which in range(len(self._parts)):
                    self._reduce(which)
                if self.recorder:
                    self.recorder.sat_out(1 + len(self._parts))
                    self.recorder.compare_clocks()

        self._thread.submit(go_on).result()

    def _reduce_next(self) -> None:
        self._submit(self._reduce, self._next)
        self._next += 1

    def _submit(self, job: Callable[..., Any], *arguments: Any) -> None:
        before, asked = self._jobs[-1:], time.perf_counter()

        def run() -> None:
            for earlier in before:   # over by now; its error is the one that counts
                earlier.result()
            if self.recorder:
                size = self._buckets[arguments[0]].flat.nbytes if job == self._reduce else 8
                self.recorder.exchange(partial(job, *arguments), asked, size)
            else:
                job(*arguments)

        self._jobs.append(self._thread.submit(run))

    # In the communication thread

    def _agree_on_rows(self, rows: int) -> bool:
        """Find this rank's weight. False if all ranks have ended."""
        device = self._is_used.device
        every = [torch.tensor([rows], device=device) for _ in range(self._group.size)]
        try:
            all_gather(every, self._group)
        except PeerError as error:
            error.add_note('no rank may do fewer backwards than the others: let ranks with fewer '
                           'mini-batches wait for the others in `with model.join():`')
            raise
        running = [rank for rank, theirs in enumerate(every) if theirs != _ENDED]
        total = sum(int(every[rank]) for rank in running)
        if rows == _ENDED:
            self._weight = 0.0
        else:
            self._weight = rows / total if total else 1 / len(running)
        if running:
            self.last_running = running[0]
        return bool(running)

    def _reduce(self, which: int) -> None:
        bucket = self._buckets[which]
        bucket.fill((self._sources[index]() for index in self._parts[which]), self._weight)
        all_reduce(bucket.flat, self._group)


def _ready(reducer: 'weakref.ref[Reducer]', which: int, index: int, _: nn.Parameter) -> None:
    if alive := reducer():
        alive.ready(which, index)
