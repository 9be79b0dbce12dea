"""Is the kit still as it was? A learner's file runs in the same process, and could exchange what judges it.

    changed, changed_nearby, put_back = watch()
    changed()    # '' or the name of what was exchanged, as 'torch.equal'
    put_back()

What is looked at: functions and classes of the kit, of Python and torch that checks compute with, and the methods of
those classes. `changed_nearby` looks at the part that compares answers only: often, as it takes little time. The three
hold all that they need themselves, down to loops that call no built-in function, as those may be exchanged, too.
"""

import builtins
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_OTHERS = ('random', 'math', 'json', 'json.encoder', 'json.decoder', 'copy', 'operator', 'functools', 'itertools',
           'fractions', 'collections', 'dataclasses', 'hashlib', 'torch', 'torch.functional', 'torch.nn.functional',
           'torch.autograd', 'torch.autograd.graph', 'torch.overrides')
_CLASSES = ('random.Random', 'json.JSONEncoder', 'torch.Tensor', 'torch.nn.Module', 'torch.nn.Parameter')
_NEARBY = ('fewgpu.workshop.grading', 'fewgpu.workshop.graders', 'fewgpu.workshop.practice')
_OF_TORCH = ('equal', 'allclose', 'isclose', 'is_tensor', 'tensor', 'Tensor', 'abs', 'sum', 'cat', 'stack')
_SKIPPED = frozenset({'graders',   # they are hidden
                      '__doc__', '__annotations__', '__warningregistry__', '__abstractmethods__', '_abc_impl',
                      'manual_seed',   # torch exchanges it itself, when an optimizer is made first
                      '__cached__', '__path__', '__spec__', '__loader__', '__builtins__'})
_MISSING = object()   # in place of what a class inherits

Place = tuple[str, Any, Any, tuple[tuple[str, Any], ...]]   # name, owner, its live table, what was in it


def watch() -> tuple[Callable[[], str], Callable[[], str], Callable[[], None]]:
    """Remember how all is now. See above."""
    places, missing = tuple(_places()), _MISSING
    nearby = tuple(_nearby(places))
    set_attribute, remove_attribute = type.__setattr__, type.__delattr__

    def changed(places: tuple[Place, ...] = places) -> str:
        for name, _, table, before in places:
            for key, value in before:
                if table.get(key, missing) is not value:
                    return f'{name}.{key}'
        return ''

    def put_back() -> None:
        for _, owner, table, before in places:
            for key, value in before:
                if table.get(key, missing) is not value:
                    if owner is None:
                        table[key] = value
                    elif value is missing:
                        remove_attribute(owner, key)
                    else:
                        set_attribute(owner, key, value)

    def changed_nearby() -> str:
        return changed(nearby)

    return changed, changed_nearby, put_back


def _places() -> Iterator[Place]:
    own = {name: module for name, module in sys.modules.items()
           if name.partition('.')[0] == 'fewgpu' and isinstance(module, ModuleType)}
    for name, module in own.items():
        yield _place(name, None, vars(module), everything=name.startswith(_NEARBY))
        for cls in _classes_of(module):
            yield _place(f'{name}.{cls.__qualname__}', cls, cls.__dict__, everything=False)
    for name in filter(sys.modules.__contains__, _OTHERS):
        yield _place(name, None, vars(importlib.import_module(name)), everything=False)
    for name in _CLASSES:
        cls = getattr(importlib.import_module(name.rpartition('.')[0]), name.rpartition('.')[2])
        yield _place(name, cls, cls.__dict__, everything=False)
        inherited = {key for base in cls.__mro__[1:-1] for key in vars(base)} - {*vars(cls), *_SKIPPED}
        yield name, cls, cls.__dict__, tuple((key, _MISSING) for key in sorted(inherited))
    yield _place('builtins', None, vars(builtins), everything=False)
    modules = {name for name in own if not name.startswith(_NEARBY[1])} | {*_OTHERS, 'builtins', 'sys'} & {*sys.modules}
    yield 'sys.modules', None, sys.modules, tuple((name, sys.modules[name]) for name in sorted(modules))
    yield 'sys', None, vars(sys), (('modules', sys.modules),)


def _nearby(places: Iterable[Place]) -> Iterator[Place]:
    for place in places:
        name, owner, table, before = place
        if name.startswith(_NEARBY) or name == 'builtins':
            yield place
        elif name == 'torch':
            yield name, owner, table, tuple((key, value) for key, value in before if key in _OF_TORCH)
        elif name == 'torch.Tensor':
            yield name, owner, table, tuple((key, value) for key, value in before if key.startswith('__'))


def _place(name: str, owner: Any, table: Any, *, everything: bool) -> Place:
    kinds = (FunctionType, BuiltinFunctionType, type, ModuleType, property, staticmethod, classmethod)
    kept = ((key, value) for key, value in list(table.items()) if key not in _SKIPPED)
    return name, owner, table, tuple((key, value) for key, value in kept if everything or isinstance(value, kinds)
                                     or type(value).__name__ in ('method_descriptor', 'wrapper_descriptor'))


def _classes_of(module: ModuleType) -> Iterator[type]:
    """Those that are defined in it."""
    return (value for value in list(vars(module).values())
            if isinstance(value, type) and value.__module__ == module.__name__)
