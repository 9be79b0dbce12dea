"""Seven faults of distributed training, each a switch on a real run of a few seconds on this machine.

A fault is a module of this package whose docstring's first line says where it is to be looked for, with

    SIGN       how it shows, in a picture and in what the kit says of it
    WHAT       what it was, in a line; in braces what `Outcome.where` has
    CHANGE     what to change, in a line
    def run(random: Random, *, fault: bool = True) -> Outcome: ...

`run` chooses at random where the fault is (which rank, which stage ...), and makes the same run without it if `fault`
is False. What it says is the library's own message: that of the error which ended the run, or of the check that
noticed what did not fail.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from fewgpu.trace import Timeline

#: The module of 'slow-link' is slow_link. Loud ones raise by themselves, silent ones are found by a check.
FAULTS: Sequence[str] = ('straggler', 'slow-link', 'rank-killed', 'mismatched-collective', 'out-of-memory',
                         'wrong-loss-scale', 'forgotten-sync')


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    title: str           #: what has run, with or without the fault
    timeline: Timeline   #: of one step, or as far as it came
    message: str         #: the kit's own; '' if there was nothing to say
    where: dict[str, Any] = field(default_factory=dict)   #: where the fault was, and what it was there


def module(name: str) -> ModuleType:
    """Of a fault. Raises KeyError for another name."""
    if name not in FAULTS:
        raise KeyError(name)
    return import_module(f'{__name__}.{name.replace("-", "_")}')


def summary(name: str) -> str:
    """Where to look for it: the first line of its module, which is not imported."""
    file = Path(find_spec(f'{__name__}.{name.replace("-", "_")}').origin)
    return ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))).partition('\n')[0]


def run(name: str, random: Random, *, fault: bool = True) -> Outcome:
    """One run of a fault. Raises KeyError for another name."""
    return module(name).run(random, fault=fault)


def told(error: BaseException) -> str:
    """What the library says: the error and its notes, less the tracebacks of ranks and the folders of files."""
    notes = [note for note in getattr(error, '__notes__', ()) if not note.startswith('raised in ')]
    text = '\n'.join([f'{type(error).__name__}: {error}', *(f'({note})' for note in notes)])
    return re.sub(r'(?<![\w.])/[^\s:]*/', '', text)
