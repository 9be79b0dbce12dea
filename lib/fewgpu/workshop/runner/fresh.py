"""An exercise as it was in the beginning: made from its solution. What stood there is kept."""

import contextlib
import os
from pathlib import Path

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.strip import strip


def fresh(exercise: Exercise) -> str:
    """The exercise as it is handed out."""
    return strip(exercise.solution.read_text(encoding='utf-8'))


def is_fresh(exercise: Exercise) -> bool:
    """Is the file as it was handed out?"""
    try:
        return exercise.file.read_text(encoding='utf-8') == fresh(exercise)
    except (OSError, ValueError):   # it is not there, or no text
        return False


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
