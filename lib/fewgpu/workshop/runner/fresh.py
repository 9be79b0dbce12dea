"""An exercise as it was in the beginning: made from its solution. What stood there is kept."""

import contextlib
import os
import tempfile
from pathlib import Path

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.runner.progress import replace
from fewgpu.workshop.strip import strip


def fresh(exercise: Exercise) -> str:
    """The exercise as it is handed out."""
    return strip(exercise.solution.read_text(encoding='utf-8'))


def keep_copy(file: Path) -> Path:
    """Copy a file to a name beside it that nothing has yet; returns it. Raises OSError if that cannot be done."""
    content = file.read_bytes()
    for number in range(1, 10**6):
        copy = file.with_name(f'{file.stem}.before-reset-{number}{file.suffix}')
        with contextlib.suppress(FileExistsError), copy.open('xb') as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
            return copy
    raise FileExistsError(f'there are too many copies of {file}')


def write(file: Path, text: str) -> None:
    """As a whole or not at all; a link stays one. Raises OSError."""
    file = file.resolve()
    mode = file.stat().st_mode if file.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix='.progress-', suffix='.part', dir=file.parent)
    try:
        with os.fdopen(handle, 'w', encoding='utf-8', newline='\n') as out:
            out.write(text)
        os.chmod(name, mode)
        replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
