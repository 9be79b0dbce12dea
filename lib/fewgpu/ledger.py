"""The memory ledger of a virtual device: live and peak bytes, exact, tensor by tensor.

A GPU's allocator knows what is allocated; a CPU's does not say. The ledger watches every operation
that a device runs, adds the bytes of each new storage, and subtracts them when the storage dies.
What an operation allocates and frees inside itself (a convolution's workspace) is not seen.
"""

import threading
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Ledger:
    """Bytes that live on one device.

    With a `limit` (bytes) an operation whose result does not fit raises torch.OutOfMemoryError, as
    on a GPU. Any number of threads may count into one ledger.
    """

    def __init__(self, name: str = 'CPU', limit: int | None = None) -> None:
        self.name, self.limit = name, limit
        self.allocated = 0    #: bytes alive now
        self.peak = 0         #: most bytes alive at once since the last `reset_peak`
        self.parameters = 0   #: of `allocated`: what was adopted as parameters and buffers
        self._lock = threading.RLock()   # finalizers run wherever the last reference is dropped
        self._live: dict[int, tuple[weakref.ref, int, bool]] = {}

    def reset_peak(self) -> None:
        with self._lock:
            self.peak = self.allocated

    def adopt(self, tensors: Iterable[torch.Tensor], *, parameters: bool = False) -> None:
        """Count tensors that were made elsewhere and now belong to this device."""
        for tensor in tensors:
            self.see(tensor, parameters=parameters)

    def see(self, tensor: torch.Tensor, *, parameters: bool = False) -> None:
        """Count the storage of a tensor, once, for as long as it lives."""
        for part in _plain(tensor):
            storage = part.untyped_storage()
            key = storage._cdata
            if key not in self._live:
                if size := storage.nbytes():
                    self._add(key, storage, size, parameters)
            elif parameters:
                self._mark(key)

    def _add(self, key: int, storage: torch.UntypedStorage, size: int, parameters: bool) -> None:
        with self._lock:
            if key in self._live:   # another thread was faster
                return
            if self.limit is not None and self.allocated + size > self.limit:
                raise torch.OutOfMemoryError(
                    f'{self.name} out of memory. Tried to allocate {_amount(size)}; of its '
                    f'{_amount(self.limit)} limit {_amount(self.allocated)} are in use. '
                    f'Use a smaller batch, or in a pipeline more micro-batches, recompute or more devices.')
            self._live[key] = weakref.ref(storage, lambda _: self._remove(key)), size, parameters
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
            self.parameters += size if parameters else 0

    def _mark(self, key: int) -> None:
        """What was counted when it was made on the device turns out to be a parameter."""
        with self._lock:
            reference, size, marked = self._live[key]
            if not marked:
                self._live[key] = reference, size, True
                self.parameters += size

    def _remove(self, key: int) -> None:
        with self._lock:
            _, size, parameters = self._live.pop(key)
            self.allocated -= size
            self.parameters -= size if parameters else 0


class Counting(TorchDispatchMode):
    """While it is entered, what the operations of this thread allocate counts into the ledger.

    Costs about ten microseconds an operation. Enter a new one each time, on each thread.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False   # torch would import all of torch._dynamo (a second) for the first operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not _aliases(func):
            self._count(result)
        return result

    def _count(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._ledger.see(result)
        elif isinstance(result, (list, tuple)):
            for item in result:
                self._count(item)


@cache
def _aliases(func: Any) -> bool:
    """Does the operation return a view of, or write into, what it was given? Then nothing is new
    (and a view of the caller's data set must not count the data set)."""
    schema = getattr(func, '_schema', None)
    return schema is not None and bool(schema.returns) and all(
        result.alias_info is not None for result in schema.returns)


def _plain(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """The dense tensors that a tensor consists of (a sparse gradient has two)."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,) if tensor.layout is torch.strided else ()


def _amount(size: int) -> str:
    """Bytes, in the largest unit of which there is one."""
    for unit, factor in (('MB', 1e6), ('kB', 1e3)):
        if size >= factor:
            return f'{size / factor:,.1f} {unit}'
    return f'{size} bytes'
