"""What jobs/job_sweep.sh starts: `python -m fewgpu.workshop.sweep_run SCRIPT [--out FOLDER] FLAGS...`.

A flag with several values (`--num_microbatches 2 4 8`) varies; every combination is a run of the script. In a job array
task N does run N, and the task that ends last makes the table and the picture. Elsewhere one process does all.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from fewgpu.workshop import repository
from fewgpu.workshop.sweep import Grid, conclude, read_grid
from fewgpu.workshop.writable import make_writable, written

TOLD_TO_END, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT


class Told(BaseException):
    """Somebody wants us to end."""


def main(words: list[str], environment: Mapping[str, str] = os.environ) -> int:
    """Do the runs that are ours; the exit status: that of our run, or 1 if any of all that were ours to show failed."""
    signal.signal(signal.SIGTERM, _told)
    try:
        before, flags = read_grid(words)
        out = flags.pop('--out', None)
        if len(before) != 1 or out is not None and len(out) != 1 or '--report' in flags:
            raise ValueError('give the script, then flags (each with one value or several), and --out with one folder; '
                             '--report is chosen for every run')
        grid = Grid(before[0], flags)
        folder = Path(out[0]) if out else repository() / 'results' / f'sweep-{_digest(grid)}'
        make_writable('--out', [folder / 'grid.json'], [folder])
    except (ValueError, typer.BadParameter) as error:
        print(f'job_sweep: {error}', file=sys.stderr)
        return 2
    with written(folder / 'grid.json', '--out') as file:
        file.write(json.dumps(asdict(grid), indent=1).encode())
    task = environment.get('SLURM_ARRAY_TASK_ID')
    return _all(grid, folder) if task is None else _one(grid, folder, int(task), environment)


def _told(*_: object) -> None:
    raise Told


def _digest(grid: Grid) -> str:
    """Names a grid: the same arguments find the same folder again."""
    return hashlib.sha256(json.dumps(asdict(grid)).encode()).hexdigest()[:6]


def _all(grid: Grid, folder: Path) -> int:
    """Every run, one after the other."""
    for number in range(len(grid.runs())):
        status = run(grid, folder, number)
        if status in (TOLD_TO_END, INTERRUPTED):
            conclude(folder, Console(highlight=False))
            return status
    return conclude(folder, Console(highlight=False))


def _one(grid: Grid, folder: Path, number: int, environment: Mapping[str, str]) -> int:
    """The run of this task of an array."""
    array, size = environment['SLURM_ARRAY_JOB_ID'], len(grid.runs())
    last = int(environment.get('SLURM_ARRAY_TASK_MAX', number))
    if number >= size:
        status = 0
        _end(folder, array, number)
        print(f'There are {size} runs, 0 to {size - 1}, so task {number} has nothing to do.')
    else:
        if last < size - 1:
            print(f'There are {size} runs: submit with --array=0-{size - 1} for all of them.')
        status = run(grid, folder, number)
        _end(folder, array, number)
    if is_last(folder, array, environment):
        return conclude(folder, Console(highlight=False, width=100)) or status
    print(f'Others are at work: the last one makes the table. At any time: ./workshop.py sweep {folder}')
    return status


def run(grid: Grid, folder: Path, number: int) -> int:
    """One run of the script; its exit status. What it says passes through, and the last of it is kept."""
    report, end = folder / f'run-{number}.json', folder / f'run-{number}.end'
    for old in (report, end):
        old.unlink(missing_ok=True)
    command = [sys.executable, str(repository() / grid.script), *grid.command(number), '--report', str(report)]
    print(f'Run {number} of 0 to {len(grid.runs()) - 1}: {grid.script} {" ".join(grid.command(number))}', flush=True)
    said, process = [], None
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors='replace')
        for line in process.stderr:
            sys.stderr.write(line)
            said.append(line.strip())
        status = process.wait()
        status, why = (status, reason(said)) if status >= 0 else (128 - status, f'ended by signal {-status}')
    except Told:
        status, why = TOLD_TO_END, 'cancelled, or its time was over'
    except KeyboardInterrupt:
        status, why = INTERRUPTED, 'interrupted'
    finally:
        if process is not None:
            process.kill()
            process.wait()
    _write(end, {'status': status, 'said': why if status else ''})
    return status


def reason(said: list[str]) -> str:
    """The line that says why, among those that a script wrote to standard error before it failed.

    A script of the kit writes its place, then why, then advice; others end with the reason.
    """
    lines = [line for line in said if line]
    places = [at for at, line in enumerate(lines[:-1]) if re.match(r'\S+\.py, line \d+: ', line)]
    return lines[places[-1] + 1] if places else lines[-1] if lines else 'it said nothing'


def _end(folder: Path, array: str, number: int) -> None:
    """Note that this task of the array is at its end."""
    _write(folder / f'ended-{array}' / str(number), {})


def _write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path, '--out') as file:
        file.write(json.dumps(content).encode())


def is_last(folder: Path, array: str, environment: Mapping[str, str]) -> bool:
    """Whether no other task of the array is still to end.

    Each notes its own end before it looks for others, so of two that end at once, one at least sees both. A task that
    was killed noted nothing, but Slurm no longer lists it. If Slurm does not answer, we take ourselves for the last.
    """
    ask = ['squeue', '--noheader', '--array', f'--jobs={array}', '--states=PENDING,RUNNING,SUSPENDED,REQUEUED',
           '--format=%K']
    for _ in range(3):
        try:
            asked = subprocess.run(ask, text=True, capture_output=True, timeout=60, env=dict(environment))
        except (OSError, subprocess.TimeoutExpired):
            asked = None
        if asked and asked.returncode == 0:
            break
        time.sleep(1)
    else:
        return True
    ended = {path.name for path in (folder / f'ended-{array}').iterdir()}
    return not set(asked.stdout.split()) - ended


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
