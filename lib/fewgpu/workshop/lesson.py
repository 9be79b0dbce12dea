"""What lessons share: a script that is run from a cell, a prediction that is compared, code that is shown."""

import inspect
import json
import os
import shlex
import subprocess
import sys
import tempfile
from numbers import Real
from pathlib import Path
from types import FunctionType
from typing import Any

import fewgpu
from fewgpu.meter import Memory
from fewgpu.trace import Timeline
from fewgpu.workshop import repository
from fewgpu.workshop.picture import read_timeline
from fewgpu.workshop.run import find_script


class Report(dict[str, Any]):
    """What a script's `--report` says about its run."""

    @property
    def timeline(self) -> Timeline | None:
        """Of one training step; None where there was no pipeline."""
        return read_timeline(self.get('timeline'))

    @property
    def memory(self) -> list[Memory]:
        """Of every device."""
        return [Memory(**row) for row in self.get('memory') or []]


def run(command_line: str) -> Report | None:
    """Run a script of the clone, as in `run('exercises/mnist_pytorch.py --arch resnet18')`.

    Its output appears as it comes. Returns its report, or None if it failed. Who interrupts the
    cell ends the script.

    Raises FileNotFoundError if there is no such script.
    """
    script, *arguments = shlex.split(command_line)
    path = find_script(script)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / 'report.json'
        code = _show([sys.executable, str(path), *arguments, '--report', str(report)], hide=str(report))
        if code == 0 and report.exists():
            return Report(json.loads(report.read_text(encoding='utf-8')))
    print(f'({path.name} ended with exit code {code}.)')
    return None


def workshop(command_line: str) -> None:
    """A command of the kit, as in `workshop('list')`: the same as `./workshop.py list` in a terminal."""
    _show([sys.executable, '-P', '-m', 'fewgpu.workshop', *shlex.split(command_line)])


def _show(command: list[str], hide: str | None = None) -> int:
    """Run it in the clone and print its output, but for lines with `hide`; its exit code."""
    here = str(Path(fewgpu.__file__).parents[1])   # the script shall run with the lesson's fewgpu
    path = os.pathsep.join(filter(None, [here, os.environ.get('PYTHONPATH')]))
    environment = {**os.environ, 'PYTHONPATH': path, 'PYTHONUNBUFFERED': '1', 'PYTHONIOENCODING': 'utf-8',
                   'TTY_INTERACTIVE': '0'}   # colours, but no animations: a cell would keep every frame
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               encoding='utf-8', errors='replace', env=environment, cwd=repository())
    try:
        for line in process.stdout:
            if hide is None or hide not in line:
                print(line, end='', flush=True)
        return process.wait()
    finally:   # the cell was interrupted: leave no process behind
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def compare(guess: float | None, found: float, unit: str = '', doubt: str = '') -> None:
    """Print what was found beside what was predicted for it; None means that nothing was.

    `doubt` is a remark behind both, as `Here.doubt`. A prediction that is no number is said to be none.
    """
    said = f'Found: {_number(found)}{unit}.'
    if guess is None:
        print(f'{said} (No prediction was made.){doubt}')
    elif not isinstance(guess, Real) or isinstance(guess, bool):
        print(f'{said} (A prediction is a number, as my_guess = 12, and not {guess!r}.){doubt}')
    else:
        near = abs(guess - found) <= 0.2 * abs(found)
        print(f'{said} You predicted {guess:g}{unit}: ' + ('close.' if near else 'not close: why?') + doubt)


def _number(value: float) -> str:
    """In three digits, but whole numbers above a thousand in full."""
    return f'{value:,.0f}' if 999.5 <= abs(value) < 1e15 else f'{value:.3g}'


class Source:
    """The code of the library, at the end of a cell: `Source(all_reduce)`. Several in one: `Source(one, other)`."""

    def __init__(self, *things: type | FunctionType) -> None:
        self._code = '\n\n'.join(inspect.getsource(thing).rstrip() for thing in things)

    def _repr_markdown_(self) -> str:
        return f'```python\n{self._code}\n```'

    def __repr__(self) -> str:
        return self._code
