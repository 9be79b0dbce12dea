"""For tests of jobs of several ranks: a small MNIST, and mischief in the midst of training."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SAMPLES, BATCH = 128, 8
AN_EPOCH = SAMPLES // BATCH   # steps

# Python runs it in every process. Of the loss function's calls in the rank that MISCHIEF names, the one of this number
# does harm; 'slow' is all calls of all ranks from then on, but not in a job that has been started again. Only from then
# on ranks wait no longer than SHORT for one that stops: a loaded machine starts them at very different times.
SHORT = 8.0
MISCHIEF = f'''
import os
SHORT = {SHORT}
''' + '''
if 'RANK' in os.environ and 'MISCHIEF' in os.environ:
    import gc, signal, sys, time, torch
    rank, number, what = os.environ['MISCHIEF'].split(':')
    again, plain, calls = int(os.environ.get('SLURM_RESTART_COUNT', 0)), torch.nn.functional.cross_entropy, []

    def cross_entropy(*inputs, **named):
        calls.append(None)
        if what == 'SIGSTOP' and len(calls) == int(number):
            from fewgpu.group import Group
            for thing in gc.get_objects():
                if isinstance(thing, Group):
                    thing.time_limit = SHORT
        if what == 'slow' and len(calls) >= int(number) and not again:
            time.sleep(0.2)
        elif len(calls) == int(number) and rank == os.environ['RANK']:
            if what == 'raise':
                raise ArithmeticError('these numbers are wrong')
            elif what == 'exit':
                sys.exit(7)
            elif what in ('SIGKILL', 'SIGSTOP'):
                os.kill(os.getpid(), getattr(signal, what))
        return plain(*inputs, **named)

    torch.nn.functional.cross_entropy = cross_entropy
'''


def mischief(folder: Path, what: str) -> dict[str, str]:
    """Variables for a job: 'RANK:NUMBER:WHAT'."""
    (folder / 'mischief').mkdir(exist_ok=True)
    (folder / 'mischief' / 'sitecustomize.py').write_text(MISCHIEF)
    return {'PYTHONPATH': str(folder / 'mischief'), 'MISCHIEF': what}


def python_of(kit: Path) -> None:
    """Give a copy of the kit this Python, with the library of this clone."""
    python = kit / '.venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH="{ROOT / "lib"}:$PYTHONPATH" '
                      f'exec {sys.executable} "$@"\n')
    python.chmod(0o755)


@pytest.fixture(scope='session')
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a small network that trains on few images."""
    folder, generator = tmp_path_factory.mktemp('mnist'), torch.Generator().manual_seed(0)
    for split in ('train', 't10k'):
        pixels = torch.randint(256, (SAMPLES, 28, 28), dtype=torch.uint8, generator=generator)
        labels = torch.randint(10, (SAMPLES,), dtype=torch.uint8, generator=generator)
        (folder / f'{split}-images-idx3-ubyte').write_bytes(
            struct.pack('>4I', 0x803, SAMPLES, 28, 28) + bytes(pixels.flatten().tolist()))
        (folder / f'{split}-labels-idx1-ubyte').write_bytes(struct.pack('>2I', 0x801, SAMPLES) + bytes(labels.tolist()))
    return ['--arch', 'small', '--datadir', str(folder), '--samples', str(SAMPLES), '--batchsize', str(BATCH),
            '--time_limit', '300']


def losses_of(run: Path) -> list[float]:
    """Of all steps, from a run's report."""
    return json.loads((run / 'report.json').read_text())['losses']


def plain_losses(folder: Path, flags: list[str], *more: str) -> list[float]:
    """Of the same steps in one process."""
    done = subprocess.run([sys.executable, str(ROOT / 'jobs' / 'train_ranks.py'), '--way', 'plain', *flags, *more,
                           '--report', str(folder / 'report.json')], text=True, capture_output=True, timeout=300,
                          env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib'), 'CUDA_VISIBLE_DEVICES': ''})
    assert done.returncode == 0, done.stderr
    return losses_of(folder)
