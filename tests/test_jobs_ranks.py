"""The job scripts of several ranks, without Slurm: ranks of this machine, which stop, fail and go on."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rank_jobs import AN_EPOCH, ROOT, SHORT, flags, losses_of, mischief, plain_losses, python_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which('bash') is None or os.name == 'nt',
                                                   reason='job scripts are for bash')]
PATIENCE = 300   # seconds
__all__ = ['flags']


@pytest.fixture(scope='module')
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with the job scripts, which has this Python."""
    root = tmp_path_factory.mktemp('my kit')
    shutil.copytree(ROOT / 'jobs', root / 'jobs', ignore=shutil.ignore_patterns('site.sh', '__pycache__'))
    (root / 'workshop.py').touch()
    python_of(root)
    return root


class Started:
    """A job script that runs."""

    def __init__(self, kit: Path, job: str, *arguments: str, **variables: str) -> None:
        self.mark = uuid.uuid4().hex   # in the environment of all its processes
        kept = {name: value for name, value in os.environ.items() if not name.startswith(('SLURM', 'PYTHON'))}
        self.output = kit / f'{self.mark}.out'
        with open(self.output, 'w') as out:
            self.process = subprocess.Popen(
                ['bash', str(kit / 'jobs' / f'job_{job}.sh'), *arguments], stdout=out, stderr=subprocess.STDOUT,
                env={**kept, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '', 'MARK': self.mark, **variables})

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def run(self) -> Path:
        """Its folder."""
        return Path(re.search(r'Output: (.*)', self.said)[1])

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + PATIENCE
        while words not in self.said:
            assert self.process.poll() is None and time.monotonic() < until, self.said
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """Those that are left of it."""
        return [int(entry.name) for entry in Path('/proc').iterdir() if entry.name.isdigit() and self._is_own(entry)]

    def _is_own(self, entry: Path) -> bool:
        try:
            return f'MARK={self.mark}'.encode() in (entry / 'environ').read_bytes()
        except OSError:   # it has ended
            return False

    def end(self) -> int:
        """Wait for its end; the exit status. Nothing is left then."""
        status = self.process.wait(PATIENCE)
        if Path('/proc').exists():
            until = time.monotonic() + PATIENCE
            while left := self.processes():
                assert time.monotonic() < until, left
                time.sleep(0.05)
        return status


@pytest.fixture
def start(kit: Path) -> Iterator[Callable[..., Started]]:
    """Starts jobs; whatever happens, none is left."""
    jobs: list[Started] = []

    def one(*arguments: str, **variables: str) -> Started:
        jobs.append(Started(kit, *arguments, **variables))
        return jobs[-1]
    yield one
    for job in jobs:
        for process in job.processes() if Path('/proc').exists() else [job.process.pid]:
            with suppress(ProcessLookupError):   # it may end meanwhile
                os.kill(process, signal.SIGKILL)
        job.process.wait()


def test_all_ways_have_the_losses_of_one_process(start, flags: list[str], tmp_path: Path) -> None:
    """Two at once, which do not get in each other's way."""
    def found(job: str, *more: str) -> Started:
        one = start(job, *flags, *more)
        assert one.end() == 0, one.said
        return one
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(found, 'ddp'), pool.submit(found, 'pipeline_ranks', '--schedule', 'gpipe'),
                pool.submit(found, 'hybrid', '--ranks', '4', '--num_microbatches', '2')]
        wanted = plain_losses(tmp_path, flags)
    assert len(wanted) == AN_EPOCH and len({*wanted}) == AN_EPOCH
    for job, ranks in zip((job.result() for job in jobs), (2, 2, 4)):
        assert losses_of(job.run) == pytest.approx(wanted, rel=1e-4)
        report = json.loads((job.run / 'report.json').read_text())
        assert report['ranks'] == len(report['memory']) == ranks and report['samples_per_second'] > 0
        assert [int(size) > 10**6 for size in report['memory'].values()] == [True] * ranks
        assert f'step {AN_EPOCH}/{AN_EPOCH} | loss {losses_of(job.run)[-1]:.6f}' in job.said
        assert f'rank {ranks - 1} on this machine' in job.said and 'samples/sec' in job.said
        assert {file.name for file in job.run.glob('rank-*')} == {f'rank-{rank}.log' for rank in range(ranks)}


@pytest.mark.parametrize(('job', 'number'), [('ddp', signal.SIGTERM), ('hybrid', signal.SIGINT)])
def test_a_run_that_is_stopped_goes_on_bit_for_bit(start, flags: list[str], job: str, number: int) -> None:
    stopped = start(job, *flags, '--epochs', '100000')
    stopped.wait_for('step 5/')
    stopped.process.send_signal(number)
    assert stopped.end() == 128 + signal.SIGTERM, stopped.said   # which Ctrl-C means here
    steps = int(re.search(r'Stopped by SIGTERM after step (\d+) ', stopped.said)[1])
    kept = re.search('--checkpoints (.*) goes on from there', stopped.said)[1]
    assert [int(path.name) for path in Path(kept).iterdir()][-1:] and len(losses_of(stopped.run)) == steps

    epochs = ['--epochs', str(steps // AN_EPOCH + 1)]
    again, whole = start(job, *flags, *epochs, '--checkpoints', kept), start(job, *flags, *epochs)
    assert again.end() == 0 == whole.end(), again.said + whole.said
    assert f'It goes on after step {steps}.' in again.said
    assert losses_of(again.run) == losses_of(whole.run) and losses_of(again.run)[:steps] == losses_of(stopped.run)
    more = start(job, *flags, *epochs, '--checkpoints', kept)
    assert more.end() == 0 and losses_of(more.run) == losses_of(whole.run)
    assert f'Nothing is left to do: {kept} has all ' in more.said and 'samples/sec' not in more.said


def test_how_to_go_on_names_the_folder_that_has_the_checkpoints(start, flags: list[str], tmp_path: Path) -> None:
    ours, temporary = tmp_path / 'ours', tmp_path / 'temporary'
    temporary.mkdir()
    one = start('ddp', *flags, '--epochs', '100000', f'--checkpoints={ours}', TMPDIR=str(temporary))
    one.wait_for('step 5/')
    one.process.send_signal(signal.SIGUSR1)
    assert one.end() == 128 + signal.SIGUSR1, one.said
    *_, last = one.said.splitlines()
    assert last.endswith(f' --checkpoints {ours}') and 'It is not started again. To go on' in last
    assert [*ours.glob('[0-9]*')] and not (one.run / 'checkpoints').exists()
    assert not [*temporary.glob('torchrun*'), *temporary.glob('torchelastic*')]


def test_a_job_goes_on_in_its_own_folder_and_never_in_that_of_an_older_job(tmp_path: Path) -> None:
    """Random jobs of one number, each of which is started again some times."""
    def folder(restarts: int) -> str:
        command = f'source "{ROOT}/jobs/ranks.sh"; folder_of "{tmp_path}/a job-7"'
        return subprocess.run(['bash', '-c', command], env={**os.environ, 'SLURM_RESTART_COUNT': str(restarts)},
                              text=True, capture_output=True, check=True).stdout.rstrip('\n')
    used = []
    for _ in range(4):
        used.append(folder(0))
        assert not Path(used[-1]).exists()
        Path(used[-1]).mkdir()
        assert {folder(restarts) for restarts in range(1, random.randint(1, 4))} <= {used[-1]}
    assert len({*used}) == 4 and used[0] == f'{tmp_path}/a job-7'


@pytest.mark.parametrize(('job', 'what', 'status', 'why'), [
    ('pipeline_ranks', 'raise', 1, r'ArithmeticError: these numbers are wrong\n.*stage 1'),
    ('ddp', 'exit', 7, 'it ended with exit status 7'),
    ('ddp', 'SIGKILL', 128 + signal.SIGKILL, 'it was killed by SIGKILL'),
])
def test_a_rank_that_fails_is_named_and_ends_the_job(start, flags: list[str], tmp_path: Path, job: str, what: str,
                                                     status: int, why: str) -> None:
    one = start(job, *flags, **mischief(tmp_path, f'1:5:{what}'))
    assert one.end() == status, one.said
    last = one.said[one.said.rindex('Rank '):]
    assert last.startswith('Rank 1 on this machine failed:\n') and re.search(why, last), last
    log = Path(re.search(r'All that it printed: (.*)', last)[1])
    assert log == one.run / 'rank-1.log' and log.exists()
    if what == 'raise':
        assert 'Traceback' in log.read_text() and 'rank 1 on this machine, stage 1' in last


def test_a_rank_that_hangs_ends_the_job(start, flags: list[str], tmp_path: Path) -> None:
    one = start('ddp', *flags, **mischief(tmp_path, '1:5:SIGSTOP'))
    assert one.end() == 1, one.said
    assert f'rank 1 did not take part within {SHORT:g} s' in one.said
    assert 'Rank 1 on this machine failed:\n    it hung' in one.said


def test_a_torchrun_that_is_killed_leaves_no_ranks(start, flags: list[str]) -> None:
    one = start('ddp', *flags, '--epochs', '100000', '--save_every', '1')
    one.wait_for('step 5/')
    torchrun, = [process for process in one.processes()
                 if b'fewgpu.workshop.torchrun' in Path(f'/proc/{process}/cmdline').read_bytes()]
    os.kill(torchrun, signal.SIGKILL)
    assert one.end() == 128 + signal.SIGKILL, one.said
    assert one.said.endswith(f'with the same arguments and --checkpoints {one.run / "checkpoints"}\n')


@pytest.mark.skipif(not Path('/proc').exists(), reason='processes are looked for in /proc')
def test_a_script_that_is_killed_leaves_nothing_but_a_checkpoint(start, flags: list[str]) -> None:
    one = start('ddp', *flags, '--epochs', '100000')
    one.wait_for('step 5/')
    one.process.kill()
    assert one.end() == -signal.SIGKILL
    steps = int(re.search(r'Stopped by SIGTERM after step (\d+) ', (one.run / 'rank-0.log').read_text())[1])
    assert len(losses_of(one.run)) == steps
    again = start('ddp', *flags, '--epochs', str(steps // AN_EPOCH + 1), '--checkpoints', str(one.run / 'checkpoints'))
    assert again.end() == 0 and f'It goes on after step {steps}.' in again.said, again.said


def complaint(job: Started) -> str:
    assert job.end() in (1, 2), job.said
    return job.said


def test_a_wrong_number_of_ranks_gets_a_sentence(start, flags: list[str]) -> None:
    sentence = '--ranks is the number of ranks on each node, 1 or more, not'
    assert f'{sentence} 0\n' in complaint(start('ddp', *flags, '--ranks', '0'))
    assert f'{sentence} none\n' in complaint(start('ddp', *flags, '--ranks'))
    assert 'a mini-batch of 1 cannot be shared out to 2: choose a --batchsize of at least 2' in complaint(
        start('ddp', *flags, '--batchsize', '1'))


def test_what_a_program_said_when_it_refused_is_in_the_last_lines(start, flags: list[str]) -> None:
    for wrong, why in ((['--bogus'], 'exit status 2: .*error: unrecognized arguments: --bogus'),
                       (['--batchsize', '1000'], 'exit status 1: .* choose a smaller --batchsize'),
                       (['--balance', '1,2'], 'exit status 1: .*balance')):
        said = complaint(start('pipeline_ranks', *flags, *wrong))
        assert re.search(rf'Rank \d on this machine failed:\n    it ended with {why}', said), said
        assert 'Traceback' not in said


def test_wrong_flags_get_a_sentence(flags: list[str], tmp_path: Path) -> None:
    kept = ['--checkpoints', str(tmp_path)]
    plain_losses(tmp_path, flags, *kept)
    for wrong, sentence in (
            (['--batchsize', 'none'], "argument --batchsize: must be a whole number, 1 or more, not 'none'"),
            (['--lr', 'nan'], "argument --lr: must be a number, above 0, not 'nan'"),
            (['--seed', '9' * 30], 'argument --seed: must be a whole number, 0 or more, not '),
            (['--time_limit', '0'], "argument --time_limit: must be a number, above 0, not '0'"),
            (['--batchsize', '1000'], '128 samples are no mini-batch of 1000: choose a smaller --batchsize'),
            (['--grid', '1x2'], '--grid is of --way hybrid, not of plain: leave it out'),
            (['--balance', '1,5'], '--balance is of pipelines, not of --way plain: leave it out'),
            (['--checkpoints', '/dev/null'], 'cannot write to --checkpoints /dev/null (File exists); name another place'),
            ([*kept, '--lr', '0.5'], 'a run with --lr 0.01, and this one has 0.5: take the same, or another folder'),
            ([*kept, '--seed', '1'], 'a run with --seed 0, and this one has 1: take the same, or another folder')):
        with pytest.raises(AssertionError) as said:
            plain_losses(tmp_path, flags, *wrong)
        assert sentence in str(said.value)
