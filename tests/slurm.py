"""A real Slurm for tests: the fixture `slurm` is one box for the whole run of the tests, `slurm_kit` a copy of the kit.

    def test_a_job(slurm: Slurm, slurm_kit: Path) -> None:
        job = slurm.submit(slurm_kit, 'jobs/job_gpipe.sh', '--samples', '16')
        assert job.wait() == 'COMPLETED' and 'samples/sec' in job.output
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOX = ROOT / 'jobs' / 'slurm-in-a-box'
INSTALL = 'apt-get install --no-install-recommends slurm-wlm munge'
PATIENCE = 300   # seconds until a job must have got where a test waits for it
ENDED = {'BOOT_FAIL', 'CANCELLED', 'COMPLETED', 'DEADLINE', 'FAILED', 'NODE_FAIL', 'OUT_OF_MEMORY', 'TIMEOUT'}


def why_not() -> str:
    """Why there can be no Slurm on this machine; empty if there can."""
    if not sys.platform.startswith('linux'):
        return 'Slurm needs Linux'
    path = f'{os.environ.get("PATH", "")}:/usr/sbin'
    if any(shutil.which(name, path=path) is None for name in ('slurmctld', 'munged')):
        return f'no Slurm is installed here ({INSTALL})'
    return 'only root can start a Slurm' if os.geteuid() else ''


def pytest_report_header() -> list[str]:
    """Say at the top what will not be tested."""
    return [f'NO TESTS WITH SLURM: {why_not()}'] if why_not() else []


def free_of_slurm() -> dict[str, str]:
    """Our environment, without what another Slurm may have put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(('SLURM', 'SBATCH', 'CUDA'))}


class Job:
    """A job (or an array of jobs) that was submitted."""

    def __init__(self, slurm: 'Slurm', number: str, folder: Path) -> None:
        self.slurm, self.id, self.folder = slurm, number, folder

    def fields(self) -> list[dict[str, str]]:
        """What Slurm says about it: of an array, about each of its tasks."""
        said = self.slurm.command('scontrol', '--oneliner', 'show', 'job', self.id).stdout
        return [dict(re.findall(r'(\w+(?::\w+)*)=(\S*)', line)) for line in said.splitlines() if line.strip()]

    @property
    def states(self) -> list[str]:
        return [job['JobState'] for job in self.fields()]

    @property
    def state(self) -> str:
        """Of a job that is no array: PENDING, RUNNING, COMPLETED, ..."""
        state, = self.states
        return state

    @property
    def code(self) -> int:
        """The exit status of its script."""
        fields, = self.fields()
        return int(fields['ExitCode'].split(':')[0])

    @property
    def output(self) -> str:
        """All that it has written, standard output and error; of an array, one task after another."""
        paths = dict.fromkeys(path for job in self.fields() for path in (job['StdOut'], job['StdErr']))
        return ''.join(Path(path).read_text(errors='replace') for path in paths if Path(path).exists())

    def wait(self) -> str:
        """Wait until it has ended; its state then (of an array: that of the tasks that were worst)."""
        self.wait_until(lambda: set(self.states) <= ENDED)
        states = set(self.states)
        return min(states, key=lambda state: (state == 'COMPLETED', state))

    def wait_for(self, *states: str) -> str:
        """Wait until it is in one of these states, or has ended."""
        self.wait_until(lambda: self.state in ENDED.union(states))
        return self.state

    def wait_for_words(self, words: str) -> str:
        """Wait until its output has these words; all of the output. Fails if the job ends without them."""
        self.wait_until(lambda: words in self.output or set(self.states) <= ENDED)
        assert words in self.output, self.output
        return self.output

    def wait_until(self, happened) -> None:
        """Wait for whatever else, with a limit."""
        until = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > until:
                pytest.fail(f'job {self.id} is not where it should be after {PATIENCE} s: '
                            f'{self.fields()}\nits output:\n{self.output}')
            time.sleep(0.1)

    def cancel(self, *options: str) -> None:
        self.slurm.command('scancel', *options, self.id)


class Slurm:
    """A Slurm that runs; `folder` is that of its box, `environment` what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**free_of_slurm(), 'SLURM_CONF': str(folder / 'slurm.conf')}

    def command(self, *command: str, cwd: Path = ROOT, check: bool = True,
                **variables: str) -> subprocess.CompletedProcess:
        """Run a command of Slurm, or any other, to its end."""
        done = subprocess.run(command, cwd=cwd, env={**self.environment, **variables}, text=True, capture_output=True,
                              timeout=PATIENCE)
        assert not check or done.returncode == 0, f'{command}: {done.stdout}{done.stderr}'
        return done

    def sbatch(self, kit: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """What sbatch does with this command line, in this folder; it may refuse."""
        return self.command('sbatch', *arguments, cwd=kit, check=False, **variables)

    def submit(self, kit: Path, *arguments: str, **variables: str) -> Job:
        """Submit a job from a folder: options of sbatch, script, arguments of the script."""
        done = self.command('sbatch', '--parsable', *arguments, cwd=kit, **variables)
        return Job(self, done.stdout.strip(), kit)

    def box(self, *order: str) -> subprocess.CompletedProcess:
        """An order to the box, such as 'crash', 'node1'."""
        return self.command(sys.executable, str(BOX), order[0], '--folder', str(self.folder), *order[1:])


@pytest.fixture(scope='session')
def slurm() -> Iterator[Slurm]:
    """One Slurm for all tests: two nodes, each with two CPUs and two stand-ins for GPUs."""
    if why_not():
        pytest.skip(f'NOT TESTED, {why_not()}')
    folder = Path(tempfile.mkdtemp(prefix='slurm-'))
    # The box lasts as long as `cat`, and that as long as we hold its input: however we end, it ends.
    command = [sys.executable, str(BOX), 'run', '--folder', str(folder), 'sh', '-c', 'echo runs; cat']
    with subprocess.Popen(command, env=free_of_slurm(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True) as box:
        if box.stdout.readline() != 'runs\n':
            pytest.fail(box.stderr.read())
        yield Slurm(folder)
        box.stdin.close()
        assert box.wait(120) == 0
    assert not folder.exists()


def copy_of_kit(root: Path, *, python: bool = True) -> Path:
    """What jobs need of the kit, in a folder of its own; `python` is whether `.venv` has a Python with the kit."""
    for folder in ('jobs', 'exercises', 'solutions'):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns('site.sh', '__pycache__'))
    shutil.copy(ROOT / 'workshop.py', root)
    (root / 'lib').symlink_to(ROOT / 'lib')
    if python:
        program = root / '.venv' / 'bin' / 'python'
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\n'
                           f'PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={ROOT / "lib"} exec {sys.executable} "$@"\n')
        program.chmod(0o755)
    return root


@pytest.fixture
def slurm_kit(tmp_path: Path) -> Path:
    """A copy of the kit to submit jobs from."""
    return copy_of_kit(tmp_path / 'kit')
