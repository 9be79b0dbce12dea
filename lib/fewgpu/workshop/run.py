"""`./workshop.py run exercises/mnist_pytorch.py --arch resnet18`: a script, run by the kit's own Python."""

import contextlib
import difflib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fewgpu.workshop import repository


def run(
    script: Annotated[str, typer.Argument(help="A Python file; its path from here, or from the clone's folder.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar='ARGUMENTS', help='All that follows reaches the script as it is.')
    ] = None,
) -> None:
    """Run a script with the kit's own Python; ends with the script's exit code.

    Try it with `exercises/mnist_pytorch.py --help`.
    """
    try:
        become([sys.executable, str(find_script(script)), *(arguments or [])])
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from error


def find_script(name: str) -> Path:
    """The file that `name` means: from the current folder, else from the clone's.

    Raises FileNotFoundError, with the names that are nearest, if there is none.
    """
    root = repository()
    for path in (Path(name), root / name):
        if path.is_file():
            return path.resolve()
    known = [path.relative_to(root).as_posix() for folder in ('exercises', 'solutions')
             for path in sorted((root / folder).glob('*.py'))]
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5) or known
    raise FileNotFoundError(f'there is no file {name}, neither here nor in {root}'
                            + (f"; did you mean {' or '.join(near)}?" if near else ''))


def become(command: Sequence[str], extra: Mapping[str, str] | None = None) -> NoReturn:
    """Go on as `command`, with `extra` in its environment: signals, input and exit code are its own.

    On Windows, where a program cannot become another, run it and end with its exit code.
    """
    environment = {**os.environ, **(extra or {})}
    sys.stdout.flush()
    if os.name != 'nt':
        os.execve(command[0], command, environment)
    with subprocess.Popen(command, env=environment) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the command too: let it end in its own way
                raise typer.Exit(process.wait())
