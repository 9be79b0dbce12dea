"""Programs of the tests' own, made of a line of shell, in place of those of a cluster or of a driver."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from fewgpu.workshop.runner.finding import Finding

posix = pytest.mark.skipif(os.name == 'nt', reason='uses programs made of a shell script')


def program(folder: Path, name: str, script: str) -> None:
    """Put a program of this name into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f'#!/bin/sh\n{script}\n')
    (folder / name).chmod(0o755)


def programs_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs in this folder come first from now on, on a machine that is no cluster."""
    monkeypatch.setenv('PATH', str(folder), prepend=os.pathsep)
    for name in list(os.environ):
        if name.startswith(('SLURM_', 'SBATCH_')):
            monkeypatch.delenv(name)
    return folder


def only(findings: Iterable[Finding]) -> Finding:
    """The one that there is."""
    finding, = findings
    return finding
