"""The job scripts of several ranks on a real Slurm of two nodes: they talk, stop in time, fail plainly, and go on."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rank_jobs import AN_EPOCH, ROOT, flags, losses_of, mischief, plain_losses, python_of
from tests.slurm import ENDED, Job, Slurm, copy_of_kit, slurm, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=f'NOT TESTED, {why_not()}')]
__all__ = ['flags', 'slurm']

Submit = Callable[..., Job]


@pytest.fixture(scope='module')
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the kit, whose Python is one to which tests can do mischief."""
    root = copy_of_kit(tmp_path_factory.mktemp('slurm') / 'kit')
    python_of(root)
    return root


@pytest.fixture
def submit(slurm: Slurm, kit: Path, flags: list[str]) -> Submit:
    """Submit a job of two nodes that leaves room for another one: name, more flags; keywords are variables."""
    def submitted(name: str, *more: str, time: str = '60', **variables: str) -> Job:
        return slurm.submit(kit, '--cpus-per-task=1', '--nodes=2', f'--time={time}', f'jobs/job_{name}.sh', *flags,
                            *more, OMP_NUM_THREADS='1', **variables)
    return submitted


def run_of(job: Job) -> Path:
    """The folder of its results."""
    return Path(re.search('Output: (.*)', job.output)[1])


def whole_losses(folder: Path, way: str, flags: list[str]) -> list[float]:
    """Of a run on two ranks of this machine that nobody interrupts."""
    done = subprocess.run(
        [sys.executable, '-m', 'fewgpu.workshop.torchrun', '--ranks', '2', '--run', str(folder),
         str(ROOT / 'jobs' / 'train_ranks.py'), '--way', way, *flags, '--report', str(folder / 'report.json')],
        env={'PATH': '/usr/bin:/bin', 'PYTHONPATH': str(ROOT / 'lib'), 'OMP_NUM_THREADS': '1'}, text=True,
        capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return losses_of(folder)


def test_two_nodes_train_as_one_process_does(submit: Submit, flags: list[str], tmp_path: Path) -> None:
    jobs = {job: submit(job, *more) for job, *more in (
        ('ddp',), ('pipeline_ranks', '--balance', '2,4'), ('hybrid', '--num_microbatches', '2'))}
    wanted = plain_losses(tmp_path, flags)
    for name, job in jobs.items():
        assert job.wait() == 'COMPLETED', job.output
        assert losses_of(run_of(job)) == pytest.approx(wanted, rel=1e-4), name
        memory = json.loads((run_of(job) / 'report.json').read_text())['memory']
        nodes = ['node1', 'node1', 'node2', 'node2'] if name == 'hybrid' else ['node1', 'node2']
        for rank, (place, node) in enumerate(zip(memory, nodes, strict=True)):
            assert place.startswith(f'rank {rank} on {node}')
            assert (run_of(job) / f'rank-{rank}.log').exists() and place in job.output
        assert f'step {AN_EPOCH}/{AN_EPOCH}' in job.output and 'samples/sec' in job.output


def test_a_cancelled_job_saves_while_another_one_fails_plainly(submit: Submit, tmp_path: Path) -> None:
    """Both at once, on the same nodes."""
    failing = submit('pipeline_ranks', '--epochs', '100000', **mischief(tmp_path, '1:1000:raise'))
    cancelled = submit('ddp', '--epochs', '100000')
    for job in (failing, cancelled):
        job.wait_until(lambda: 'step 5/' in job.output or job.state in ENDED)   # else it may end by itself meanwhile
    cancelled.cancel()
    assert cancelled.wait() == 'CANCELLED' and cancelled.code == 128 + 15
    steps = int(re.search(r'Stopped by SIGTERM after step (\d+) ', cancelled.output)[1])
    assert len(losses_of(run_of(cancelled))) == steps >= 5
    assert (run_of(cancelled) / 'checkpoints' / f'{steps:09}').is_dir()

    assert failing.wait() == 'FAILED' and failing.code == 1
    last = failing.output[failing.output.rindex('Rank '):]
    assert last.startswith('Rank 1 on node2 failed:\n    ArithmeticError: these numbers are wrong\n'), failing.output
    assert 'stage 1' in last and f'All that it printed: {run_of(failing) / "rank-1.log"}' in last
    assert 'Traceback' in (run_of(failing) / 'rank-1.log').read_text()


def test_time_limits(slurm: Slurm, submit: Submit, flags: list[str], tmp_path: Path) -> None:
    """One job is warned, and goes on in another run; another one is not, and saves when it is told to end."""
    epochs = ['--epochs', '20']
    warned = submit('pipeline_ranks', *epochs, time='10', **mischief(tmp_path, '1:5:slow'))
    ended = submit('ddp', '--epochs', '100000', time='10', SBATCH_SIGNAL='B:USR1@0')   # 0 s before: never
    whole = whole_losses(tmp_path / 'whole', 'pipeline', [*flags, *epochs])
    for job, seconds in ((warned, 60), (ended, 5)):
        job.wait_for_words('step 5/')
        slurm.command('scontrol', 'update', f'jobid={job.id}', f'EndTime=now+{seconds}')
    assert ended.wait() == 'TIMEOUT' and re.search(r'Stopped by SIGTERM after step \d+ ', ended.output)

    assert warned.wait() == 'COMPLETED', warned.output
    steps = int(re.search(r'Stopped by SIGUSR1 \(the time limit is near\) after step (\d+) ', warned.output)[1])
    assert f'Job {warned.id} is back in the queue' in warned.output
    assert f'It goes on after step {steps}.' in warned.output and 5 <= steps < len(whole)
    assert losses_of(run_of(warned)) == whole


@pytest.mark.parametrize('node', ['node2', 'node1'])
def test_a_job_that_loses_a_node_goes_on(slurm: Slurm, submit: Submit, flags: list[str], tmp_path: Path,
                                         node: str) -> None:
    """Also the node where its script runs."""
    epochs = ['--epochs', '6']
    job = submit('hybrid', '--ranks', '1', *epochs, '--save_every', '5', **mischief(tmp_path, '1:20:slow'))
    whole = whole_losses(tmp_path / 'whole', 'hybrid', [*flags, *epochs, '--grid', '2x1'])
    job.wait_for_words('step 22/')
    slurm.box('crash', node)
    try:
        job.wait_for('PENDING')
    finally:
        slurm.box('boot', node)
    assert job.wait() == 'COMPLETED', job.output
    before, _, then = (run_of(job) / 'rank-0.log').read_text().partition('It goes on after step ')
    after, done = int(then.partition('.')[0]), max(map(int, re.findall(r'^step (\d+)/', before, re.MULTILINE)))
    assert after % 5 == 0 and done - 5 <= after <= done
    assert losses_of(run_of(job)) == whole
