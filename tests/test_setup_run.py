"""The set-up for real, in copies of this clone: first, second, interrupted, two at once, without a network."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = sys._base_executable  # the Python below this virtual environment
NO_NETWORK = {'PIP_CONFIG_FILE': os.devnull, 'PIP_INDEX_URL': 'http://127.0.0.1:9/simple', 'PIP_RETRIES': '1'}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == 'nt', reason='uses POSIX signals and paths')]


def copy_of_this_clone(folder: Path) -> Path:
    """What a fresh clone would hold."""
    made = ['.git', '.venv*', 'results', 'build', '*.egg-info', '__pycache__', '.pytest_cache', '.hypothesis']
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*made)))


def environment(extra: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ('VIRTUAL_ENV', 'PYTHONPATH')}
    if extra:
        kept = {key: value for key, value in kept.items() if not key.startswith('PIP_')}
    return {**kept, 'COLUMNS': '200', **extra}


def run(clone: Path, *arguments: str, python: str = BASE, **extra: str) -> subprocess.CompletedProcess:
    """Run workshop.py from another folder, as a learner may."""
    done = subprocess.run(
        [python, clone / 'workshop.py', *(arguments or ['--help'])],
        cwd=clone.parent, env=environment(extra), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    if 'there is no network here' in done.stderr and not extra:
        pytest.skip('setting up needs a network, and there is none here')
    return done


def imported(clone: Path, module: str) -> Path:
    """The file that the clone's own environment imports as `module`."""
    command = [clone / '.venv/bin/python', '-P', '-c', f'import {module}; print({module}.__file__)']
    return Path(subprocess.check_output(command, text=True, env=environment({})).strip())


def succeeded(done: subprocess.CompletedProcess) -> bool:
    assert 'Traceback' not in done.stderr
    return done.returncode == 0 and 'Usage: workshop.py' in done.stdout


@pytest.fixture(scope='module')
def clone(tmp_path_factory) -> Iterator[Path]:
    """A clone with spaces in its path, set up by the Python below this environment."""
    clone = copy_of_this_clone(tmp_path_factory.mktemp('set up') / 'few gpus')
    done = run(clone)
    assert succeeded(done), done.stdout + done.stderr
    assert 'this happens once' in done.stdout and 'The kit is ready' in done.stdout
    yield clone
    shutil.rmtree(clone)  # more than a gigabyte


def test_first_run_installs_this_clone_and_its_pins(clone):
    assert imported(clone, 'fewgpu') == clone / 'lib/fewgpu/__init__.py'
    freeze = [clone / '.venv/bin/python', '-m', 'pip', 'freeze']
    listed = subprocess.check_output(freeze, text=True, env=environment({}))
    pins = [line.split('#')[0].strip() for line in (clone / 'requirements.txt').read_text().splitlines()]
    own_torch = imported(clone, 'torch').is_relative_to(clone / '.venv')
    assert all(pin in listed for pin in pins if own_torch or not pin.startswith('torch==')), listed


def test_second_run_fetches_nothing_and_says_nothing_of_a_set_up(clone):
    before = (clone / '.venv/set-up.log').stat().st_mtime_ns
    done = run(clone, PIP_NO_INDEX='1', **NO_NETWORK)
    assert succeeded(done) and done.stdout.lstrip().startswith('Usage:')
    assert (clone / '.venv/set-up.log').stat().st_mtime_ns == before


def test_a_set_up_clone_runs_its_own_tests(clone):
    two = ['tests/test_setup.py', '-k', 'conda or licence']
    done = run(clone, 'test', '--', *two, python=str(clone / '.venv/bin/python'))
    assert done.returncode == 0 and '2 passed' in done.stdout, done.stdout + done.stderr


def test_an_interrupted_set_up_is_repaired_by_the_next(clone):
    (clone / '.venv/set-up-complete').unlink()
    packages = imported(clone, 'cloudpickle').parents[1]
    half = next(packages.glob('cloudpickle-*.dist-info'))
    (half / 'INSTALLER').unlink()  # what a package looks like while pip is writing it
    shutil.rmtree(packages / 'cloudpickle')
    command = [BASE, clone / 'workshop.py', '--help']
    options = {'env': environment({}), 'stdout': subprocess.PIPE, 'text': True, 'start_new_session': True}
    with subprocess.Popen(command, **options) as process:
        while 'installing' not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.5)  # pip has started
        os.killpg(process.pid, signal.SIGKILL)
    assert not (clone / '.venv/set-up-complete').exists()
    assert succeeded(run(clone))
    assert imported(clone, 'cloudpickle').exists()


def test_two_runs_at_once_wait_for_each_other(clone):
    (clone / '.venv/set-up-complete').unlink()
    command = [BASE, clone / 'workshop.py', '--help']
    options = {'env': environment({}), 'stdout': subprocess.PIPE, 'text': True}
    both = [subprocess.Popen(command, **options) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted('Another run is setting' in text for text in said) == [False, True]
    assert sorted('The kit is ready' in text for text in said) == [False, True]


def test_set_up_builds_upon_a_torch_that_is_already_there(tmp_path):
    import torch

    clone = copy_of_this_clone(tmp_path / 'upon')
    done = run(clone, python=sys.executable)
    assert succeeded(done), done.stdout + done.stderr
    assert 'building on the torch of this environment' in done.stdout
    assert imported(clone, 'torch').samefile(torch.__file__)
    assert imported(clone, 'fewgpu') == clone / 'lib/fewgpu/__init__.py'
    assert succeeded(run(clone, python=BASE, PIP_NO_INDEX='1', **NO_NETWORK))


def test_without_a_network_one_sentence_says_what_to_do(tmp_path):
    done = run(copy_of_this_clone(tmp_path / 'offline'), **NO_NETWORK)
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert 'there is no network here' in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name == 'posix' and os.geteuid() == 0, reason='root may write into any folder')
def test_in_a_read_only_folder_one_sentence_says_what_to_do(tmp_path):
    clone = copy_of_this_clone(tmp_path / 'read only')
    clone.chmod(0o500)
    done = run(clone)
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert 'cannot be written to' in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name == 'nt', reason='links need a privilege there')
def test_the_environment_of_another_clone_that_a_link_leads_to_is_left_alone(tmp_path):
    clone, other = copy_of_this_clone(tmp_path / 'linked'), tmp_path / 'other'
    (other / 'bin').mkdir(parents=True)
    (other / 'bin/python').write_text('of another clone')
    (clone / '.venv').symlink_to(other)
    done = run(clone)
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert 'remove the link' in done.stderr and len(done.stderr.splitlines()) == 1
    assert (other / 'bin/python').read_text() == 'of another clone'


def test_the_wheel_holds_the_library_and_mnist(clone, tmp_path):
    import zipfile

    build = [clone / '.venv/bin/python', '-m', 'pip', 'wheel', '--no-deps', '-w', tmp_path, clone]
    done = subprocess.run(build, capture_output=True, text=True, env=environment({}))
    assert done.returncode == 0, done.stdout + done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob('fewgpu-*.whl'))).namelist()
    library = {str(path.relative_to(clone / 'lib')) for path in (clone / 'lib/fewgpu').rglob('*.py')}
    assert library <= set(names)
    assert sum(name.startswith('fewgpu/mnist/') and name.endswith('.gz') for name in names) == 4
