"""What the process that grades tells the one that watches it: lines of JSON, each with a proof of who wrote it.

A learner's file runs in the same process as the checks, and may write into every file that is open there. So both sides
share a key of this run; each line carries the checksum of the key, its number and its text, and a line that was added,
altered, left out or put elsewhere is not believed. The key is in a file that is gone before the learner's file is read.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

MOST = 2**24    # bytes of a line, and of what is read at once
_KEY = 'key'


class Forged(ValueError):
    """A line that the grader has not written."""


def open_for_reading(file: Path) -> BinaryIO:
    """Make the file for the lines, and open it: a pipe where there are such, as a file could be emptied. Reading from
    it waits for nothing."""
    try:
        os.mkfifo(file, 0o600)
    except (AttributeError, OSError):   # not on Windows, nor on every disk
        file.touch(0o600)
    flags = os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0) | getattr(os, 'O_BINARY', 0)
    return open(os.open(file, flags), 'rb', buffering=0)


def make_key(folder: Path) -> bytes:
    """A new one, and a file with it for the process that is to start."""
    key = secrets.token_bytes(32)
    (folder / _KEY).write_bytes(key)
    return key


def take_key(folder: Path) -> bytes:
    """The key, whose file is gone afterwards."""
    key = (folder / _KEY).read_bytes()
    (folder / _KEY).unlink()
    return key


def writer(out: BinaryIO, key: bytes) -> Callable[[dict[str, Any]], None]:
    """Writes a line, and leaves none in a buffer. It holds all that it needs itself, so that nobody can exchange it."""
    number, encode, proof, write, flush = 0, json.JSONEncoder().encode, _proof, out.write, out.flush

    def tell(data: dict[str, Any]) -> None:
        nonlocal number
        line = encode(data).encode()
        write(proof(key, number, line) + b' ' + line + b'\n')
        flush()
        number += 1
    return tell


class Reader:
    """Reads what `writer` writes, as it comes."""

    def __init__(self, file: BinaryIO, key: bytes) -> None:
        self._file, self._key, self._rest, self._number = file, key, b'', 0

    def lines(self) -> list[dict[str, Any]]:
        """Those that are new. Raises Forged, from then on, when it comes to one that is none of the writer's."""
        while len(self._rest) <= MOST and (read := self._file.read(MOST)):
            self._rest += read
        found = []
        while b'\n' in self._rest:
            line, _, rest = self._rest.partition(b'\n')
            if not self._is_next(line):
                break   # it stays where it is
            self._rest = rest
            self._number += 1
            found.append(json.loads(line.partition(b' ')[2]))
        if not found and (b'\n' in self._rest or len(self._rest) > MOST):
            raise Forged(f'what follows line {self._number} is not of the grader')
        return found

    def _is_next(self, line: bytes) -> bool:
        proof, _, text = line.partition(b' ')
        return secrets.compare_digest(proof, _proof(self._key, self._number, text))


def _proof(key: bytes, number: int, line: bytes, blake2b: Callable = hashlib.blake2b) -> bytes:
    return blake2b(b'%d ' % number + line, key=key, digest_size=16).hexdigest().encode()
