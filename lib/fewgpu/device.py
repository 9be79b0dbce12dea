"""Devices: GPUs, and CPU cores that behave like GPUs.

A stage lives on a device. A device has one worker thread that runs what is submitted to it, in
order. On a GPU the worker enqueues kernels; a virtual CPU device computes in its worker, with one
intra-op thread, and may keep a memory ledger with a limit. Several devices may share one GPU.
"""

import atexit
import contextlib
import functools
import math
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fewgpu.ledger import Counting, Ledger
from fewgpu.link import Link
from fewgpu.malloc import keep_freed_memory

keep_freed_memory()

Job = Callable[[], None]
_limited: set[torch.device] = set()   # GPUs whose allocator has a limit from `get_devices`


class Device:
    """One device of a pipeline.

    `device` is where its tensors live ('cpu', 'cuda:1', 1, a torch.device); `index` numbers the
    virtual CPU devices. Only for virtual devices: `memory_limit` (bytes) turns the ledger on;
    `link` is how messages reach the device; with a `pace` between 0 and 1 it computes that much
    slower, so that more devices than cores behave as if each had a core.
    """

    def __init__(self, device: torch.device | str | int = 'cpu', *, index: int = 0,
                 memory_limit: int | None = None, link: Link | None = None,
                 pace: float | None = None) -> None:
        self.torch = torch.device(f'cuda:{device}' if isinstance(device, int) else device)
        self.is_virtual = self.torch.type == 'cpu'
        if self.torch.type not in ('cpu', 'cuda'):
            raise ValueError(f"a device is a GPU ('cuda:0') or a virtual one ('cpu'), not {self.torch}")
        if self.torch.type == 'cuda' and not torch.cuda.is_available():
            raise ValueError(f"there is no {self.torch} here: use virtual CPU devices, 'cpu'")
        if self.torch.type == 'cuda' and memory_limit is not None:
            raise ValueError('the allocator of a GPU has one limit for all that use it: set it by '
                             'get_devices(n, memory_limit=...)')
        if self.torch.type == 'cuda' and (link is not None or pace is not None):
            raise ValueError('a GPU has the link and the pace that it has: give them to virtual '
                             "devices, kind='cpu'")
        if pace is not None and not 0.0 < pace <= 1.0:
            raise ValueError(f'a pace is above 0 and at most 1, a share of the full speed, not {pace}')
        if self.torch.type == 'cuda' and self.torch.index is None:
            self.torch = torch.device('cuda', torch.cuda.current_device())
        self.index = index if self.is_virtual else (self.torch.index or 0)
        self.name = f"{'CPU' if self.is_virtual else 'GPU'} {self.index}"
        self.memory_limit, self.link, self.pace = memory_limit, link, pace
        self.computed = 0.0   #: seconds, stretched by the pace, for which it has computed so far (see `paced`)
        self.ledger: Ledger | None = None
        self._worker: _Worker | None = None
        if memory_limit is not None:
            self.meter()

    def meter(self) -> Ledger | None:
        """Turn the memory ledger on; None on a GPU, whose allocator counts by itself."""
        if self.is_virtual and self.ledger is None:
            self.ledger = Ledger(self.name, self.memory_limit)
        return self.ledger

    def unmeter(self) -> None:
        """Turn the ledger off again (a device with a limit keeps it)."""
        if self.memory_limit is None:
            self.ledger = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """What this thread allocates inside counts as this device's, if it is metered."""
        with Counting(self.ledger) if self.ledger else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def active(self) -> Iterator['Device']:
        """Inside, the calling thread is this device: a plain training step can be run on it."""
        with contextlib.ExitStack() as stack:
            if self.is_virtual:
                stack.enter_context(one_thread())
                stack.enter_context(self.counting())
            elif self.torch.type == 'cuda':
                stack.enter_context(torch.cuda.device(self.torch))
            yield self

    def submit(self, job: Job) -> None:
        """Let the worker run `job` after what it was given before. A job must not raise."""
        if self._worker is None or self._worker.pid != os.getpid():   # threads do not survive fork
            _prepare_for_fork()
            self._worker = _Worker(self.name, self.is_virtual)
            weakref.finalize(self, self._worker.jobs.put, None)
        self._worker.jobs.put(job)

    @contextlib.contextmanager
    def paced(self, works: bool = True) -> Iterator[None]:
        """What is computed inside takes its time divided by the pace; this thread sleeps the rest.

        Counted is the time that the thread computes, so that devices which outnumber the cores, and
        share them, still take the time that they would take alone. `computed` adds it up; on a GPU
        it is the time in which the thread enqueues kernels.
        """
        if not works:
            yield
            return
        start, before = time.perf_counter(), time.thread_time()
        yield
        seconds = (time.thread_time() - before) / (self.pace or 1.0)
        self.computed += seconds
        if self.pace is not None:
            time.sleep(max(0.0, start + seconds - time.perf_counter()))

    def now(self) -> Any:
        """A time stamp: seconds, or on a GPU an event among its kernels (see fewgpu.trace)."""
        if self.torch.type != 'cuda':
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch))
        return event

    def __repr__(self) -> str:
        return f'<Device {self.name}>'

    def __deepcopy__(self, memo: dict) -> 'Device':
        return self   # a copy of a model lives where the model lives

    def __reduce__(self) -> tuple:
        return _rebuild, (str(self.torch), self.index, self.memory_limit, self.link, self.pace)


def _rebuild(device: str, index: int, memory_limit: int | None, link: Link | None,
             pace: float | None) -> Device:
    return Device(device, index=index, memory_limit=memory_limit, link=link, pace=pace)


def get_devices(n: int, *, kind: str | None = None, memory_limit: int | None = None,
                latency: float = 0.0, bandwidth: float = math.inf,
                pace: float | None = None) -> list[Device]:
    """n devices: the GPUs, shared in turn if there are fewer, or virtual CPU devices without any.

    `kind` 'cpu' or 'cuda' insists on one sort. `memory_limit` is bytes a device; on GPUs the
    allocator enforces it, for the devices that share a GPU together. Virtual devices may be given
    links (`latency` in seconds, `bandwidth` in bytes a second) and a `pace`: see `Device`.
    """
    if latency or bandwidth < math.inf or pace is not None:
        return [Device('cpu' if kind is None else kind, index=i, memory_limit=memory_limit, pace=pace,
                       link=Link(latency, bandwidth)) for i in range(n)]
    devices = choose_devices(n, kind=kind, memory_limit=memory_limit)
    for gpu, stages in Counter(device.torch for device in devices if not device.is_virtual).items():
        _limit_allocator(gpu, None if memory_limit is None else stages * memory_limit)
    return devices


def choose_devices(n: int, *, kind: str | None = None,
                   memory_limit: int | None = None) -> list[Device]:
    """As `get_devices`, but the allocators of GPUs keep the limits that they have."""
    gpus = torch.cuda.device_count()
    if kind is None:
        kind = 'cuda' if gpus else 'cpu'
    if kind == 'cpu':
        return [Device('cpu', index=i, memory_limit=memory_limit) for i in range(n)]
    if kind != 'cuda':
        raise ValueError(f"a device is of kind 'cpu' or 'cuda', not {kind!r}")
    if not gpus:
        raise ValueError("there is no GPU here; use virtual CPU devices: kind='cpu'")
    # Neighbouring stages share a GPU, so that little crosses between GPUs.
    return [Device(f'cuda:{i * gpus // n if n > gpus else i}') for i in range(n)]


def _limit_allocator(gpu: torch.device, limit: int | None) -> None:
    """Let torch's allocator give out `limit` bytes of a GPU; None lifts a limit set here before."""
    if limit is None and gpu not in _limited:
        return   # a limit that the learner set stays
    total = torch.cuda.get_device_properties(gpu).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else min(1.0, limit / total), gpu)
    (_limited.discard if limit is None else _limited.add)(gpu)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Operations of the calling thread use one core inside, and as many as before afterwards."""
    before = torch.get_num_threads()   # also makes torch's lazy set-up happen now, not later
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _prepare_for_fork() -> None:
    """The threads with which torch computes do not survive a fork: in the child, an operation that
    waited for them would hang, where one core just computes it."""
    if hasattr(os, 'register_at_fork'):   # not on Windows, which has no fork
        os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))


class _Worker:
    """The thread of a device. It refers to the device's queue only, so that the device can die."""

    def __init__(self, name: str, is_virtual: bool) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        ready = threading.Event()
        callers_threads = torch.get_num_threads()
        self.thread = threading.Thread(target=_work, args=(self.jobs, ready, is_virtual),
                                       daemon=True, name=f'fewgpu {name}')
        self.thread.start()
        _queues[self.thread] = self.jobs
        ready.wait()
        # set_num_threads in the worker became the default of threads to come: put it back.
        torch.set_num_threads(callers_threads)


# By the threads, which outlive their device while they let go of its last step.
_queues: weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue] = weakref.WeakKeyDictionary()


@atexit.register
def _end_workers() -> None:
    """Before Python ends: a worker that still lets go of its last step would meet an interpreter
    that is gone, and abort. (Not for ever: one may hang in a layer.)"""
    workers = list(_queues.items())
    for _, jobs in workers:
        jobs.put(None)
    for thread, _ in workers:
        thread.join(timeout=5.0)


def _work(jobs: queue.SimpleQueue, ready: threading.Event, is_virtual: bool) -> None:
    if is_virtual:
        torch.get_num_threads()   # or torch's lazy set-up would undo the next line
        torch.set_num_threads(1)
    ready.set()
    while (job := jobs.get()) is not None:
        job()
        del job   # or the last step would stay alive until the next one
