"""Making millions of operations that all stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage() -> Iterator[None]:
    """Inside, or in a function that it decorates, Python does not search what is made for garbage:
    there is none, and to search it again and again took a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
