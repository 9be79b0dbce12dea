"""Files that are written as a whole or not at all, whatever ends us meanwhile."""

import contextlib
import os
import secrets
import time
from pathlib import Path


def write(file: Path, text: str, *, mode: int | None = None) -> None:
    """Write a text in UTF-8. A file that was there keeps its rights, and a link stays a link; `mode` sets other rights.

    Raises OSError if it cannot be written; then what was there is as it was.
    """
    file = file.resolve()
    if mode is None and file.exists():
        mode = file.stat().st_mode
    part = file.with_name(f'.progress-{secrets.token_hex(8)}.part')
    try:
        with part.open('x', encoding='utf-8', errors='replace', newline='\n') as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if mode is not None:
            os.chmod(part, mode)
        _replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _replace(new: Path, file: Path) -> None:
    """Put a file in another's place. (Windows refuses for a moment while somebody reads the other.)"""
    for attempt in range(20):
        try:
            return os.replace(new, file)
        except PermissionError:
            if os.name != 'nt' or attempt == 19:
                raise
            time.sleep(0.05)
