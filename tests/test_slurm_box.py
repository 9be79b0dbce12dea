"""jobs/slurm-in-a-box: it starts, works and ends, whatever happens to it, and leaves nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm import BOX, PATIENCE, Slurm, free_of_slurm, why_not

needs_slurm = pytest.mark.skipif(bool(why_not()), reason=f'NOT TESTED, {why_not()}')


def box(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(BOX), *arguments], env={**free_of_slurm(), **variables}, text=True,
                          capture_output=True, timeout=PATIENCE)


def complaint(*arguments: str, **variables: str) -> str:
    """The one sentence that it says when it cannot."""
    done = box(*arguments, **variables)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith('slurm-in-a-box: ') and done.stderr.count('\n') == 1, done.stderr
    return done.stderr


def wait_until(happened: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)


def processes(words: str) -> dict[int, str]:
    """Processes that have these words in their command or environment, and their commands."""
    found = {}
    for entry in Path('/proc').iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command, environment = ((entry / name).read_bytes() for name in ('cmdline', 'environ'))
            except OSError:
                continue   # it has ended
            if words.encode() in command + b'\0' + environment:
                found[int(entry.name)] = command.replace(b'\0', b' ').decode(errors='replace')
    return found


def listeners(among: dict[int, str]) -> set[str]:
    """The addresses, as /proc/net/tcp writes them, on which these processes listen."""
    sockets = set()
    for process in among:
        try:
            links = [os.readlink(link) for link in Path(f'/proc/{process}/fd').iterdir()]
        except OSError:
            continue
        sockets |= {number for link in links for number in re.findall(r'^socket:\[(\d+)\]$', link)}
    rows = [line.split() for name in ('tcp', 'tcp6') for line in Path(f'/proc/net/{name}').read_text().splitlines()[1:]]
    return {row[1].split(':')[0] for row in rows if row[3] == '0A' and row[9] in sockets}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path for a box, which is empty, and free of processes, when the test has ended."""
    parent = Path(tempfile.mkdtemp(prefix='box-'))
    yield parent / 'b'
    box('stop', '--folder', str(parent / 'b'))
    left = processes(str(parent)), list(parent.iterdir())
    shutil.rmtree(parent)
    assert left == ({}, [])


def started(folder: Path, *options: str) -> dict[str, str]:
    """Start a box there; the environment for its commands, as a shell gets it."""
    done = box('start', '--folder', str(folder), *options)
    assert done.returncode == 0 and 'eval' in done.stdout, done.stderr
    shell = f'eval "$({sys.executable} {BOX} env --folder {folder})"; env'
    shown = subprocess.run(['bash', '-c', shell], env=free_of_slurm(), text=True, capture_output=True, check=True)
    return dict(line.split('=', 1) for line in shown.stdout.splitlines() if '=' in line)


def sinfo(environment: dict[str, str], form: str) -> list[str]:
    return subprocess.run(['sinfo', '-hN', '-p', 'cpu', '-o', form], env=environment, text=True, capture_output=True,
                          check=True).stdout.split()


@needs_slurm
def test_box_starts_shows_itself_and_stops_without_leaving_anything(folder: Path) -> None:
    environment = started(folder, '--nodes', '3', '--cpus', '5', '--gpus', '1')
    assert sinfo(environment, '%N:%c:%G') == [f'node{n}:5:gpu:1' for n in (1, 2, 3)]
    shown = box('status', '--folder', str(folder))
    assert shown.returncode == 0 and shown.stdout.count('idle') == 3 and 'ended' not in shown.stdout
    end, pipe = os.pipe()
    os.close(end)   # `status | true`: nobody reads
    unread = subprocess.run([sys.executable, str(BOX), 'status', '--folder', str(folder)], stdout=pipe,
                            stderr=subprocess.PIPE, timeout=PATIENCE)
    os.close(pipe)
    assert unread.returncode == 128 + signal.SIGPIPE and not unread.stderr
    assert 'runs already' in complaint('start', '--folder', str(folder))
    assert box('stop', '--folder', str(folder)).returncode == 0
    assert not folder.exists() and not processes(str(folder))
    for command in ('stop', 'status', 'env'):
        assert 'No Slurm runs' in complaint(command, '--folder', str(folder))


@needs_slurm
def test_run_gives_the_status_of_the_command_and_stops(folder: Path) -> None:
    where = '--folder', str(folder), '--gpus', '0'
    assert box('run', *where, 'sh', '-c', 'sinfo -h >&2; exit 7').returncode == 7
    assert box('run', *where, '--', 'sh', '-c', 'kill -TERM $$').returncode == 128 + signal.SIGTERM
    done = box('run', *where, 'sbatch', '--wait', '--output=/dev/null', '--wrap', 'exit 3')
    assert done.returncode == 3 and 'Submitted' in done.stdout
    assert 'No such file' in complaint('run', *where, './nothing-here')
    assert 'Say what to run' in complaint('run', *where)
    assert not folder.exists() and not processes(str(folder))


@needs_slurm
def test_two_boxes_side_by_side_know_nothing_of_each_other(folder: Path) -> None:
    other = folder.with_name('c')
    few, many = started(folder, '--nodes', '1', '--gpus', '0'), started(other, '--nodes', '2')
    try:
        assert sinfo(few, '%N') == ['node1'] and sinfo(many, '%N') == ['node1', 'node2']
        assert box('stop', '--folder', str(folder)).returncode == 0
        assert sinfo(many, '%T') == ['idle', 'idle']
    finally:
        box('stop', '--folder', str(other))
    assert not processes(str(other))


@needs_slurm
def test_everything_listens_on_loopback_only(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.submit(tmp_path, '--nodes=2', '--ntasks-per-node=1', '--wrap', 'srun sh -c "echo runs; sleep 600"')
    job.wait_until(lambda: job.output.count('runs') == 2)
    here = processes(str(slurm.folder))
    names = {Path(command.split(' ')[0]).name for command in here.values()}
    assert {'slurmctld', 'slurmd', 'munged', 'srun'} <= names
    assert listeners(here) == {'0100007F'}
    job.cancel()
    assert job.wait() == 'CANCELLED'


@needs_slurm
def test_srun_works_where_the_name_of_the_host_leads_nowhere(folder: Path) -> None:
    host = ['unshare', '--uts', 'sh', '-c', 'hostname no.such-host.invalid && exec "$@"', 'sh']
    try:
        subprocess.run([*host, 'true'], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip('NOT TESTED: this machine allows no host name of our own')
    script = 'srun -N2 -n2 echo one; echo "#!/bin/sh\nsrun echo two" | sbatch -N2 -n2 --wait -o "$1"; cat "$1"'
    done = subprocess.run([*host, sys.executable, str(BOX), 'run', '--folder', str(folder), 'sh', '-c', script, 'sh',
                           str(folder.with_name('output'))], env=free_of_slurm(), text=True, capture_output=True)
    folder.with_name('output').unlink()
    assert done.stdout.count('one') == done.stdout.count('two') == 2, done.stdout + done.stderr


@needs_slurm
def test_a_node_crashes_with_all_that_runs_on_it_and_boots_again(slurm: Slurm, tmp_path: Path) -> None:
    script = '(setsid env -i sleep 98765 &); echo "on $SLURMD_NODENAME"; sleep 98765'
    job = slurm.submit(tmp_path, '--nodelist=node2', '--requeue', '--wrap', script)
    neighbour = slurm.submit(tmp_path, '--nodelist=node1', '--wrap', 'echo runs; sleep 600')
    job.wait_for_words('on node2')
    neighbour.wait_for_words('runs')
    wait_until(lambda: len(processes('sleep\x0098765')) == 2)
    slurm.box('crash', 'node2')
    assert not processes('sleep\x0098765')   # also what had left its job and its environment
    states = dict(zip(sinfo(slurm.environment, '%N'), sinfo(slurm.environment, '%T'), strict=True))
    assert states['node2'].startswith('down') and not states['node1'].startswith('down')
    shown = box('status', '--folder', str(slurm.folder))
    assert shown.returncode == 1 and re.search(r'node2 +has ended', shown.stdout)
    slurm.box('boot', 'node2')
    assert box('status', '--folder', str(slurm.folder)).returncode == 0
    assert job.wait_for('RUNNING') == 'RUNNING'   # it was queued again
    assert job.fields()[0]['Restarts'] == '1' and neighbour.state == 'RUNNING'
    for one in (job, neighbour):
        one.cancel()
        assert one.wait() == 'CANCELLED'
    assert 'There is no node node9' in complaint('crash', '--folder', str(slurm.folder), 'node9')
    assert 'runs already' in complaint('boot', '--folder', str(slurm.folder), 'node1')


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize('victim', ['munged', 'slurmctld', 'slurmd', 'slurm_box.keeper'])
def test_stop_cleans_up_after_whatever_was_killed(folder: Path, victim: str) -> None:
    environment = started(folder)
    output = folder.with_name('output')
    script = 'srun sh -c "echo runs; sleep 600"'
    subprocess.run(['sbatch', f'--output={output}', '--nodes=2', '--ntasks-per-node=1', '--wrap', script],
                   env=environment, check=True, capture_output=True)
    wait_until(lambda: output.exists() and output.read_text().count('runs') == 2)
    output.unlink()
    here = processes(str(folder))
    # Of those with the keeper's command one is the keeper, whose parent is not among them; the others tend nodes.
    if victim == 'slurm_box.keeper':
        killed = [process for process, command in here.items() if victim in command and _parent(process) not in here]
    else:
        killed = [process for process, command in here.items() if Path(command.split(' ')[0]).name == victim]
    assert killed
    for process in killed:
        os.kill(process, signal.SIGKILL)
    if victim != 'slurm_box.keeper':
        wait_until(lambda: box('status', '--folder', str(folder)).returncode == 1 or victim == 'slurmd')
    if victim in ('munged', 'slurmctld'):
        assert box('crash', '--folder', str(folder), 'node1').returncode == 0
        assert f'{victim} has ended' in complaint('boot', '--folder', str(folder), 'node1')
    assert box('stop', '--folder', str(folder)).returncode == 0
    assert not folder.exists() and not processes(str(folder))
    assert started(folder, '--gpus', '0')


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize('part', ['', 'box.json', 'keeper.socket'])
def test_a_box_whose_folder_is_taken_away_ends_and_leaves_the_next_one_alone(folder: Path, part: str) -> None:
    def job(environment: dict[str, str]) -> int:
        return int(subprocess.run(['sbatch', '--parsable', '--hold', '--wrap', 'true'], env=environment,
                                  cwd=folder.parent, text=True, capture_output=True, check=True).stdout)
    first = job(started(folder))
    if part:
        (folder / part).unlink()
    while not part and folder.exists():   # as with `rm -r`: again, if a daemon wrote into it meanwhile
        shutil.rmtree(folder, ignore_errors=True)
    wait_until(lambda: not processes(str(folder)))
    assert job(started(folder)) > first   # results are named by these numbers
    assert box('status', '--folder', str(folder)).returncode == 0
    stopped = box('stop', '--folder', str(folder))
    assert stopped.returncode == 0 and 'unset SLURM_CONF' in stopped.stdout


def _parent(process: int) -> int:
    return int(Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[1])


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize('ending', [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('moment', ['while it starts', 'while it runs'])
def test_box_of_run_ends_with_whoever_started_it(folder: Path, ending: signal.Signals, moment: str) -> None:
    command = [sys.executable, str(BOX), 'run', '--folder', str(folder), 'sh', '-c', 'echo runs; exec cat']
    with subprocess.Popen(command, env=free_of_slurm(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True) as starter:
        if moment == 'while it runs':
            assert starter.stdout.readline() == 'runs\n'
        else:
            wait_until(folder.exists)
        if ending == signal.SIGINT:
            os.killpg(starter.pid, ending)   # as the terminal does
        else:
            starter.send_signal(ending)
    wait_until(lambda: not folder.exists() and not processes(str(folder)))


@needs_slurm
def test_bad_input_gets_one_sentence_with_the_remedy(folder: Path) -> None:
    folder.mkdir()
    (folder / 'mine').write_text('precious')
    assert 'holds other things' in complaint('start', '--folder', str(folder))
    assert (folder / 'mine').read_text() == 'precious'
    shutil.rmtree(folder)
    assert 'another --folder' in complaint('start', '--folder', '/proc/nowhere')
    assert 'too long for a socket' in complaint('start', '--folder', f'/tmp/{"x" * 90}')
    assert 'choose a --folder of letters' in complaint('start', '--folder', '/tmp/a b')
    for flags in (('--nodes', '0'), ('--cpus', 'two'), ('--gpus', '-1')):
        done = box('start', *flags)
        assert done.returncode == 2 and 'must be a number from' in done.stderr


def test_machine_without_slurm_and_who_is_not_root_are_told_what_to_do(folder: Path) -> None:
    code = (f'import os, sys; sys.path.insert(0, {str(BOX.parent)!r}); sys.dont_write_bytecode = True\n'
            'from slurm_box import commands\n'
            '{}\n'
            f'sys.exit(commands.main(["start", "--folder", {str(folder)!r}], ""))')
    no_slurm = 'commands.NEEDED = "slurm-is-not-here", *commands.NEEDED; os.geteuid = lambda: 0'
    for before, remedy in ((no_slurm, 'apt-get install --no-install-recommends slurm-wlm munge'),
                           ('os.geteuid() or os.setuid(65534)', 'use sudo'),
                           ('sys.platform = "darwin"', 'needs Linux')):
        done = subprocess.run([sys.executable, '-c', code.format(before)], text=True, capture_output=True)
        assert done.returncode == 1 and remedy in done.stderr and done.stderr.count('\n') == 1, done.stderr
    assert not folder.exists()
