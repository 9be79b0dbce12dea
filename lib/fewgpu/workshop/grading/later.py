"""Do something to a module as soon as it has been imported, if it ever is: to import torch.distributed.pipelining takes
a second, and hardly any learner's file wants it.

    when_imported({'torchgpipe.gpipe', 'torchgpipe.balance'}, change)
    import torchgpipe.gpipe   # change('torchgpipe.gpipe')
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def not_imported(name: str) -> str:
    """The module that a dotted name is, or is part of, if nobody has imported it; '' if somebody has, or there is none.

    Nothing is imported to find it.
    """
    found, path = '', None
    for part in name.split('.'):
        whole = f'{found}.{part}' if found else part
        if whole in sys.modules:
            path = getattr(sys.modules[whole], '__path__', [])
        elif spec := PathFinder.find_spec(whole, path):
            path = spec.submodule_search_locations or []
        else:
            break
        found = whole
    return '' if found in sys.modules else found


def when_imported(names: Iterable[str], change: Callable[[str], None]) -> None:
    """Call `change` with the name of each of these modules after it was executed, before whoever imports it has it."""
    sys.meta_path.insert(0, _Finder(frozenset(names), change))


class _Finder(MetaPathFinder):
    def __init__(self, names: frozenset[str], change: Callable[[str], None]) -> None:
        self._names, self._change = names, change

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._names else None
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader, self._change)
        return spec


class _Loader(Loader):
    """Does what another one does, and the change. (Sources, for a traceback, are asked of it, too.)"""

    def __init__(self, loader: Any, change: Callable[[str], None]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
