"""The exercises of the kit. One number ties the exercise, its solution, its grader and its bank.

    exercises/05_gpipe_schedule.py                what learners edit
    solutions/05_gpipe_schedule.py                the same, solved: the source of both
    lib/fewgpu/workshop/graders/05_gpipe_schedule.py
    tests/bank/05_gpipe_schedule/                 right and wrong answers for the grader

The first line of a solution's docstring names it, as in `Exercise 05: the schedule of GPipe (about 25 minutes).`
"""

import ast
import os
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType

from fewgpu.workshop import repository

_FILE = re.compile(r'(\d\d)_\w+')
_TITLE = re.compile(r'Exercise (\d\d): (.+?) \(about (\d+) minutes\)\.', re.DOTALL)


def real(file: str | Path) -> Path:
    """The file behind links, by its whole path. (A circle of links stays one: `Path.resolve` raises.)"""
    return Path(os.path.realpath(file))


@dataclass(frozen=True)
class Exercise:
    """One of them. Found by its solution, for that is the source of all the rest."""

    number: int
    name: str   #: '05_gpipe_schedule'
    root: Path

    @property
    def file(self) -> Path:
        """What the learner edits."""
        return self.root / 'exercises' / f'{self.name}.py'

    @property
    def solution(self) -> Path:
        return self.root / 'solutions' / f'{self.name}.py'

    @cached_property
    def _title(self) -> tuple[str, int]:
        docstring = ast.get_docstring(ast.parse(self.solution.read_text(encoding='utf-8'))) or ''
        match = _TITLE.match(docstring)
        if not match or int(match[1]) != self.number:
            raise ValueError(f'{self.solution} has no title: its docstring begins with '
                             f'"Exercise {self.number:02}: what it is about (about 20 minutes)."')
        return re.sub(r'\s+', ' ', match[2]), int(match[3])

    @property
    def title(self) -> str:
        return self._title[0]

    @property
    def minutes(self) -> int:
        """About how long it takes."""
        return self._title[1]

    def grader(self) -> ModuleType:
        """The module of its grader. See `fewgpu.workshop.grading.grader`."""
        return import_module(f'fewgpu.workshop.graders.{self.name}')


def all_exercises() -> list[Exercise]:
    """In the order of their numbers. Raises FileNotFoundError where there is no clone of the kit."""
    root = repository()
    found = [Exercise(int(match[1]), path.stem, root) for path in sorted((root / 'solutions').glob('*.py'))
             if (match := _FILE.fullmatch(path.stem))]
    return found


def find(number: int | str) -> Exercise:
    """By its number, 5 or '05', by its name or by its file. Raises LookupError, with the choices, if there is none."""
    exercises = all_exercises()
    wanted = Path(number).stem if isinstance(number, str) else number
    for exercise in exercises:
        if wanted in (exercise.name, exercise.number, f'{exercise.number}', f'{exercise.number:02}'):
            return exercise
    choices = ', '.join(f'{exercise.number:02}' for exercise in exercises)
    raise LookupError(f'there is no exercise {str(number)[:40]}: choose from {choices}')
