"""Finished answers, which a learner's file may not call, and processes, which it may not start.

A forbidden function stays what it is for the kit and for torch: only a call from the learner's file is refused, also by
way of Python's own modules (map, a thread, exec). So importing one and not using it is no fault, and whoever looks for
a detour round an import finds it closed.
"""

import functools
import importlib
import importlib.util
import multiprocessing.process
import pkgutil
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import fewgpu
from fewgpu.workshop.grading.later import not_imported, when_imported

_STARTS = {'os.fork', 'os.forkpty', 'os.exec', 'os.posix_spawn', 'os.spawn', 'os.system', 'os.startfile', 'pty.spawn',
           'subprocess.Popen'}

_KIT, _PYTHON = str(Path(fewgpu.__file__).parent), (sysconfig.get_path('stdlib'), '<frozen')

IsLearners = Callable[[str], bool]


class HandedBack(BaseException):
    """The learner's file calls what it is asked to write. (No Exception: `except Exception` does not hide it.)"""


class StartsProcess(BaseException):
    """The learner's file starts a process."""


def forbid(names: Collection[str], is_learners: IsLearners) -> None:
    """From now on in this process, calls from the learner's file to these raise `HandedBack`.

    A name is dotted: a module or package (all functions and classes that are defined in it), a class, a function or a
    method; of a package that is not installed nothing can be called. Raises ImportError or AttributeError if there is
    no such thing in a package that is. What is not imported yet is looked at when it is.
    """
    # (Of the kit all is imported before the learner's file is: `guard` watches what is there.)
    late = {name: module for name in names if not name.startswith('fewgpu.') and (module := not_imported(name))}
    _forbid([name for name in names if name not in late], is_learners)

    def forbid_now(module: str) -> None:
        _forbid([name for name in late if late[name] == module], is_learners)
    when_imported(late.values(), forbid_now)


def _forbid(names: Iterable[str], is_learners: IsLearners) -> None:
    everywhere: dict[int, Any] = {}
    for name in names:
        for public, owner, value in _named(name):
            if isinstance(value, type):
                _trip_class(public, value, is_learners)
            elif isinstance(owner, type):
                setattr(owner, value.__name__, _trip(public, value, is_learners))
            else:
                everywhere[id(value)] = _trip(public, value, is_learners)
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if id(value) in everywhere:
                    setattr(module, name, everywhere[id(value)])


def hide_graders() -> None:
    """From now on in this process, nobody gets hold of a grader's module by its name: some compute the right answer.
    To import one is to open its file."""
    graders = 'fewgpu.workshop.graders'
    for name in [name for name in sys.modules if f'{name}.'.startswith(f'{graders}.')]:
        owner, _, part = name.rpartition('.')
        if owner in sys.modules:
            vars(sys.modules[owner]).pop(part, None)
        del sys.modules[name]


def forbid_processes(is_learners: IsLearners) -> None:
    """From now on in this process, the learner's file cannot start another, by whatever way."""
    def refuse(event: str, arguments: tuple) -> None:
        if event in _STARTS:
            # In a thread of the file's own nothing of it need be left on the stack.
            in_thread = threading.current_thread() is not threading.main_thread()
            if in_thread or is_behind(sys._getframe(1), is_learners):
                raise StartsProcess(event)

    def refuse_start(self: Any) -> None:
        if is_behind(sys._getframe(1), is_learners):
            raise StartsProcess('multiprocessing')
        start(self)

    start = multiprocessing.process.BaseProcess.start
    multiprocessing.process.BaseProcess.start = refuse_start
    sys.addaudithook(refuse)


def serves(frame: FrameType | None, is_learners: IsLearners) -> bool:
    """Does what this frame does serve the learner's file, and not the kit, torch or another package?

    Python's own modules pass on what they were told by whom they serve.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if is_learners(file):
            return True
        if file.startswith(_KIT) or '-packages' in file:
            return False
        if not file.startswith(_PYTHON):
            return True
        frame = frame.f_back
    return True


def is_behind(frame: FrameType | None, is_learners: IsLearners) -> bool:
    """Is the learner's file anywhere behind what this frame does?"""
    while frame is not None:
        if is_learners(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _trip(name: str, function: Callable, is_learners: IsLearners) -> Callable:
    @functools.wraps(function)
    def tripped(*arguments: Any, **named: Any) -> Any:
        if serves(sys._getframe(1), is_learners):
            raise HandedBack(name)
        return function(*arguments, **named)
    del tripped.__wrapped__   # no way round
    return tripped


def _trip_class(name: str, cls: type, is_learners: IsLearners) -> None:
    made = cls.__init__

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if serves(sys._getframe(1), is_learners):
            raise HandedBack(name)
        if made is not object.__init__:
            made(self, *arguments, **named)
    cls.__init__ = __init__


def _named(name: str) -> Iterator[tuple[str, Any, Any]]:
    """What a dotted name stands for: (its public name, what owns it, itself) of each function and class."""
    if importlib.util.find_spec(name.partition('.')[0]) is None:
        return
    owner, value, found = None, None, ''
    for part in name.split('.'):
        try:
            owner, value = value, importlib.import_module(f'{found}.{part}' if found else part)
        except ModuleNotFoundError:
            owner, value = value, getattr(value, part)
        else:
            if owner is not None and not isinstance(getattr(owner, part, value), ModuleType):
                value = getattr(owner, part)   # a function whose module has the same name: fewgpu.launch
        found = f'{found}.{part}' if found else part
    if not isinstance(value, ModuleType):
        yield name, owner, value
        return
    for module in _with_submodules(value):
        for part, member in list(vars(module).items()):
            if isinstance(member, (FunctionType, type)) and getattr(member, '__module__', '') == module.__name__:
                yield f'{module.__name__}.{part}', module, member


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for found in pkgutil.iter_modules(getattr(module, '__path__', [])):
        yield from _with_submodules(importlib.import_module(f'{module.__name__}.{found.name}'))
