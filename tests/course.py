"""A small clone of the kit with two exercises, for tests of the commands that learners type."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.strip import strip

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns('__pycache__', 'mnist', 'graders', '*.pyc')

SOLUTIONS = {
    '01_double': '''"""Exercise 01: twice as much [no markup] (about 5 minutes)."""


def double(x):
    """double(3)  ->  6"""
    # STEP 1: twice x
    return 2 * x
    # END


def quadruple(x):
    """quadruple(3)  ->  12"""
    # STEP 2: twice that
    return double(double(x))
    # END
''',
    '02_half': '''"""Exercise 02: half of it (about 10 minutes)."""


def half(x):
    """half(3)  ->  1.5"""
    # STEP 1: halve x
    return x / 2
    # END
''',
}

GRADERS = {
    '01_double': '''
from fewgpu.workshop.grading.grader import Failure, Hints, check

MISCONCEPTIONS = {'square': 'x times x is taken for twice x: they agree for 2 alone'}
HINTS = {'double': Hints(idea='Think of x + x.', place='`double`, after STEP 1.',
                         outline='return x, and\\n  x once more'),
         'quadruple': Hints(idea='Twice, twice.', place='`quadruple`.', outline='double what double returns')}


@check('double gives twice as much', points=6)
def double(work, random):
    for x in [1, *(random.randrange(2, 1000) for _ in range(5))]:
        got = work.double(x)
        if got != 2 * x:
            case = f'double({x})\\nyours     {got}\\nexpected  {2 * x}'
            raise Failure(misconception='square' if got == x * x else '', case=case, picture='x----x',
                          svg='<svg xmlns="http://www.w3.org/2000/svg"></svg>', lines=work.definition('double'))
    return {'a figure': '42'}


@check('quadruple gives four times as much', points=4, after=['double'])
def quadruple(work, random):
    if work.quadruple(3) != 12:
        raise Failure('It is wrong.', lines=work.definition('quadruple'))
''',
    '02_half': '''
from fewgpu.workshop.grading.grader import Failure, Hints, check

MISCONCEPTIONS = {}
HINTS = {'half': Hints(idea='Think.', place='`half`.', outline='x / 2')}


@check('half gives half of it', points=10, seconds=90)
def half(work, random):
    if work.half(3) != 1.5:
        raise Failure('It is wrong.', lines=work.definition('half'))
''',
}

SQUARE = 'def double(x):\n    return x * x\n\n\ndef quadruple(x):\n    return double(double(x))\n'
SLEEPS = 'import time\n\n\ndef half(x):\n    print("begun", flush=True)\n    time.sleep(80)\n'


@dataclass
class Course:
    """A clone in a folder of its own."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> 'Course':
        shutil.copytree(ROOT / 'lib/fewgpu', root / 'lib/fewgpu', ignore=LEFT_OUT)
        shutil.copy(ROOT / 'workshop.py', root)
        graders = root / 'lib/fewgpu/workshop/graders'
        for folder in (graders, root / 'exercises', root / 'solutions'):
            folder.mkdir()
        (graders / '__init__.py').touch()
        for name, text in SOLUTIONS.items():
            (root / f'solutions/{name}.py').write_text(text)
            (root / f'exercises/{name}.py').write_text(strip(text))
            (graders / f'{name}.py').write_text(GRADERS[name])
        return cls(root)

    def exercise(self, number: int) -> Exercise:
        return Exercise(number, sorted(SOLUTIONS)[number - 1], self.root)

    def solve(self, number: int) -> None:
        exercise = self.exercise(number)
        exercise.file.write_text(exercise.solution.read_text())

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, 'PYTHONPATH': str(self.root / 'lib'), 'COLUMNS': '80', 'TERM': 'dumb',
                'PYTHONIOENCODING': 'utf-8'}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, '-P', '-m', 'fewgpu.workshop', *arguments]

    def run(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(*arguments), cwd=self.root, env={**self.environment, **extra},
                              capture_output=True, encoding='utf-8', timeout=120, check=False, stdin=subprocess.DEVNULL)

    def start(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(self.command(*arguments), cwd=self.root, env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, encoding='utf-8')

    def graded_now(self) -> list[int]:
        """The processes, as Linux lists them, that grade a file of this clone."""
        found = []
        for folder in Path('/proc').glob('[0-9]*'):
            try:
                line = (folder / 'cmdline').read_bytes().decode(errors='replace')
            except OSError:
                continue
            if 'grading.child' in line and str(self.root) in line:
                found.append(int(folder.name))
        return found

    def wait_for(self, condition: bool) -> Sequence[int]:
        """Until there is, or is not, such a process; what there is in the end."""
        until = time.monotonic() + 30
        while bool(self.graded_now()) != condition and time.monotonic() < until:
            time.sleep(0.05)
        return self.graded_now()
