"""Long skips: a layer saves its input under a name, and a later layer loads it and uses it beside its own.

    nn.Sequential(a, Save('s'), b, c, Load('s'), d)

        a ──┬──► b ──► c ──► cat ──► d        plain: they meet in a store of the thread
            └────────────────►┘

In a pipeline a skip is a message of its own: see `fewgpu.skip_routes`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    'cat': lambda x, skip: torch.cat([x, skip], dim=1),
    'add': torch.add,
}
LONGEST = 200   # bytes of a name: it travels with the message


@dataclass
class Waiting:
    """A skip that waits for its loads."""

    name: str
    tensor: torch.Tensor
    loads: float               # that are still to come
    by: 'Save | None' = None   # None: it came from another stage

    def __post_init__(self) -> None:
        self._version = _version(self.tensor)

    def intact(self) -> torch.Tensor:
        if _version(self.tensor) != self._version:
            raise RuntimeError(f'the skip {self.name!r} was changed in place after it had been saved: let '
                               f'the layer after Save({self.name!r}) work on a copy (inplace=False)')
        return self.tensor


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class _Thread(threading.local):
    def __init__(self) -> None:
        self.saved: list[Waiting] = []
        self.is_exact = False   # does `saved` belong to one forward alone?


_thread = _Thread()


@contextlib.contextmanager
def own_skips() -> Iterator[list[Waiting]]:
    """Inside, one forward runs: it finds what it saved itself, and leaves nothing behind."""
    before, saved = (_thread.saved, _thread.is_exact), []
    _thread.saved, _thread.is_exact = saved, True
    try:
        yield saved
    finally:
        _thread.saved, _thread.is_exact = before
        saved.clear()   # the traceback of an error would keep it


class Save(nn.Module):
    """Passes its input, a tensor, on, and remembers it under `name` for `loads` layers `Load(name)`.

    Raises TypeError for anything but a tensor, ValueError for a name that is still to be loaded.
    """

    def __init__(self, name: str, loads: int = 1) -> None:
        super().__init__()
        self.name, self.loads = _verified(name), loads
        if not (isinstance(loads, int) and loads >= 1):
            raise ValueError(f'a skip is loaded at least once, not {loads!r} times')

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f'Save({self.name!r}) takes one tensor, not a {type(x).__name__}: put it behind '
                            f'a layer that returns one')
        saved = _thread.saved
        if _thread.is_exact and any(one.name == self.name for one in saved):
            raise saved_twice(self.name)
        saved[:] = [one for one in saved if one.by is not self]   # left by a forward that failed half-way
        saved.append(Waiting(self.name, x, self.loads, self))
        # A node of its own in the graph: gradients of what follows then add up before that of the skip
        # is added, in the plain model as behind a cut, so that both are equal to the bit.
        return x.view_as(x)

    def extra_repr(self) -> str:
        return repr(self.name) + f', loads={self.loads}' * (self.loads > 1)


class Load(nn.Module):
    """Combines its input with the skip of that name.

    `combine` is 'cat' (along dimension 1: channels), 'add', or a function of input and skip; a subclass
    may instead have a `merge` of its own. The skip must not be changed in place.

    Raises ValueError if nothing of that name was saved before.
    """

    def __init__(self, name: str, combine: str | Callable[[Any, torch.Tensor], Any] = 'cat') -> None:
        super().__init__()
        self.name, self.combine = _verified(name), combine
        if not callable(combine) and combine not in COMBINE:
            raise ValueError(f'combine is {" or ".join(map(repr, COMBINE))}, or a function of the input '
                             f'and the skip, not {combine!r}')

    def forward(self, x: Any) -> Any:
        return self.merge(x, self._take())

    def merge(self, x: Any, skip: torch.Tensor) -> Any:
        """What the layer returns."""
        return (self.combine if callable(self.combine) else COMBINE[self.combine])(x, skip)

    def _take(self) -> torch.Tensor:
        saved = _thread.saved
        for position in reversed(range(len(saved))):
            one = saved[position]
            if one.name == self.name:
                one.loads -= 1
                if not one.loads:
                    del saved[position]
                return one.intact()
        raise not_saved(self.name)

    def extra_repr(self) -> str:
        return f'{self.name!r}, {self.combine}'


class SkipSequential(nn.Sequential):
    """An nn.Sequential with skips, whose forwards have nothing to do with each other.

    In a plain nn.Sequential a forward that fails leaves its skips in memory until the next one, and two
    layers that save the same name are not noticed: the newest counts.

    Raises ValueError if its skips do not match.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with own_skips() as saved:
            y = super().__call__(*args, **kwargs)
            if saved:
                raise not_loaded(saved[0].name)
            return y


def _verified(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name.encode()) <= LONGEST:
        raise ValueError(f'the name of a skip is a text of 1 to {LONGEST} bytes, not {name!r}')
    return name


def not_saved(name: str) -> ValueError:
    return ValueError(f'Load({name!r}) finds no skip of that name: put a Save({name!r}) before it (and '
                      f'loads=... if several layers load it)')


def not_loaded(name: str) -> ValueError:
    return ValueError(f'the skip {name!r} is saved and then not loaded as often as it says: add '
                      f'Load({name!r}), or leave the Save out')


def saved_twice(name: str) -> ValueError:
    return ValueError(f'the skip {name!r} is saved again before it has been loaded: give each its own name')
