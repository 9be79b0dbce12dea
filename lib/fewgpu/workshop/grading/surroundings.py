"""What a learner's file may have changed about Python and torch, as it was: no check depends on it."""

import builtins
import os
import sys
from collections.abc import Callable

import torch


def surroundings() -> Callable[[], None]:
    """Remember them; what is returned puts them back.

    Those are the built-in functions, the folder we are in, where modules are looked for, how deep a recursion may go,
    and torch's gradient mode, default device and default dtype.
    """
    built_in, folder, path, depth = dict(vars(builtins)), os.getcwd(), list(sys.path), sys.getrecursionlimit()
    dtype = torch.get_default_dtype()

    def put_back() -> None:
        vars(builtins).update(built_in)
        os.chdir(folder)
        sys.path[:] = [*path, *(place for place in sys.path if place not in path)]   # files beside the learner's
        sys.setrecursionlimit(depth)
        torch.set_grad_enabled(True)
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)
    return put_back
