"""Loading ahead: while one item is used, the next ones are on their way through a pipeline of steps.

    for weights in Ahead(files, read, to_device, depth=2):   # file 3 is read, file 2 copied,
        compute(weights)                                     # while file 1 is computed with

It is the prefetch of ZeRO-Infinity (arXiv 2104.07857: disk for layer i + 3, host for i + 2, device for
i + 1 while layer i computes) and the double buffer of Hydra (arXiv 2110.08633, one step).
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from queue import Queue
from typing import Any

_END = object()


def verify_depth(depth: int, what: str = 'items') -> int:
    """How many are loaded ahead. Raises TypeError for what is no whole number, ValueError for a negative one."""
    if not isinstance(depth, int):
        raise TypeError(f'the depth is a whole number of {what} that are loaded ahead, not {depth!r}')
    if depth < 0:
        raise ValueError(f'at least 0 {what} are loaded ahead, not {depth}')
    return depth


class Ahead:
    """Iterates over `items`, each sent through `steps` before; each step has a thread of its own.

    Up to `depth` items are begun before they are asked for: at any time that many more than the one in
    use are held (0: nothing is loaded ahead, every step runs when its item is asked for). Items come
    out in order. The error of a step, or of `items`, is raised where its item is asked for, with a note
    that names the item; nothing behind it is loaded. Leaving the loop early ends the threads.

    Raises ValueError for a negative depth, TypeError for one that is no whole number.
    """

    def __init__(self, items: Iterable[Any], *steps: Callable[[Any], Any], depth: int = 1) -> None:
        self._items, self._steps, self._depth = items, steps, verify_depth(depth)

    def __iter__(self) -> Iterator[Any]:
        return self._now() if self._depth == 0 else self._before()

    def _now(self) -> Iterator[Any]:
        items = iter(self._items)
        for number in count():
            value = _attempt(partial(next, items, _END), number)
            for step in self._steps if value is not _END else ():
                value = value if isinstance(value, _Failed) else _attempt(partial(step, value), number)
            if value is _END:
                return
            if isinstance(value, _Failed):
                raise value.error
            yield value
            del value

    def _before(self) -> Iterator[Any]:
        queues = [Queue() for _ in range(len(self._steps) + 1)]
        run = _Run(threading.Semaphore(self._depth))
        threads = [threading.Thread(target=run.begin, args=(iter(self._items), queues[0])),
                   *(threading.Thread(target=run.work, args=(step, *pair))
                     for step, *pair in zip(self._steps, queues, queues[1:]))]
        for thread in threads:
            thread.daemon, thread.name = True, 'fewgpu ahead'
            thread.start()
        try:
            while (value := queues[-1].get()) is not _END:
                if isinstance(value, _Failed):
                    raise value.error
                run.tokens.release()   # it is in use now: one more may be begun
                yield value
                del value   # before the next one is waited for
        finally:
            run.over = True
            run.tokens.release()
            for thread in threads:
                thread.join()


class _Run:
    """What the threads of one loop share."""

    def __init__(self, tokens: threading.Semaphore) -> None:
        self.tokens, self.over = tokens, False

    def begin(self, items: Iterator[Any], out: Queue) -> None:
        """In the thread that asks for the items."""
        for number in count():
            self.tokens.acquire()
            value = _END if self.over else _attempt(partial(next, items, _END), number)
            out.put(value)
            if value is _END or isinstance(value, _Failed):
                break
            del value
        out.put(_END)

    def work(self, step: Callable[[Any], Any], into: Queue, out: Queue) -> None:
        """In the thread of a step."""
        failed = False
        for number in count():
            if (value := into.get()) is _END:
                break
            if not (self.over or failed or isinstance(value, _Failed)):
                value = _attempt(partial(step, value), number)
            failed = failed or isinstance(value, _Failed)   # nothing behind it is loaded
            out.put(value)
            del value
        out.put(_END)


class _Failed:
    """In the place of a value: the error of its step."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _attempt(call: partial, number: int) -> Any:
    try:
        return call()
    except BaseException as error:
        error.add_note(f'while item {number} was loaded ahead ({getattr(call.func, "__name__", call.func)})')
        return _Failed(error)
