"""Can the files of `./workshop.py compare` be written? Asked before the run, not after it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer


def refuse_unwritable(out: Path, names: Sequence[str]) -> None:
    """Refuse, before minutes of work, a folder in which these files could not be written at the end."""
    try:
        (out / 'reports').mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out), tempfile.TemporaryFile(dir=out / 'reports'):
            pass
        for path in (out / name for name in names):
            if path.exists():
                path.open('ab').close()
    except OSError as error:
        raise typer.BadParameter(f'cannot write to --out {out} ({error.strerror}): name a folder of yours') from None
