"""The ways into the kit: `./workshop.py run`, `lab` and `kernel`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.workshop import __main__, lab, run

ROOT = Path(__file__).resolve().parents[1]
PYTHONPATH = {'PYTHONPATH': str(ROOT / 'lib')}  # this clone's fewgpu, whatever else is installed
posix = pytest.mark.skipif(os.name == 'nt', reason='sends POSIX signals')


def workshop(*arguments: str, folder: Path = ROOT, **extra: str) -> subprocess.CompletedProcess:
    command = [sys.executable, '-P', '-m', 'fewgpu.workshop', *arguments]
    return subprocess.run(command, cwd=folder, env={**os.environ, **PYTHONPATH, 'COLUMNS': '300', **extra},
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def started_by(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that a command line becomes."""
    became: list[list[str]] = []
    for module in (run, lab):
        monkeypatch.setattr(module, 'become', lambda command, extra=None: became.append(list(command)))
    __main__.build(arguments)(arguments, standalone_mode=False)
    return became[0]


ANYTHING = st.lists(st.one_of(st.text(), st.sampled_from(['--help', '-h', '--', '--lr=1', '-x', '', 'run', 'a b'])))


@given(ANYTHING)
def test_all_that_follows_a_script_reaches_it_untouched(arguments):
    with pytest.MonkeyPatch.context() as patch:
        command = started_by(['run', 'exercises/mnist_pytorch.py', *arguments], patch)
    assert command == [sys.executable, str(ROOT / 'exercises/mnist_pytorch.py'), *arguments]


def test_arguments_of_lab_reach_jupyterlab_after_its_own(monkeypatch):
    asked = ['--port', '8890', '--no-browser', '-y', '--ServerApp.root_dir=elsewhere']
    command = started_by(['lab', *asked], monkeypatch)
    assert command[:4] == [sys.executable, '-P', '-m', 'jupyterlab'] and command[-len(asked):] == asked


@pytest.mark.parametrize('code', [0, 1, 7, 130, 255])
def test_a_script_runs_in_the_folder_one_is_in_and_its_exit_code_is_passed_on(tmp_path, code):
    lines = 'import os, sys; print(os.getcwd(), sys.argv[2]); sys.exit(int(sys.argv[1]))'
    (tmp_path / 'my script.py').write_text(lines)
    done = workshop('run', 'my script.py', str(code), '--help', folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, f'{tmp_path} --help\n', '')


def test_a_script_of_the_clone_is_found_from_any_folder(tmp_path):
    done = workshop('run', 'exercises/mnist_pytorch.py', '--help', folder=tmp_path)
    assert done.returncode == 0 and 'usage: mnist_pytorch.py' in done.stdout


def test_an_unknown_script_is_a_sentence_with_the_nearest_names(tmp_path):
    done = workshop('run', 'exercises/mnist_torch.py', folder=tmp_path)
    assert done.returncode == 2 and 'Traceback' not in done.stderr
    assert 'there is no file exercises/mnist_torch.py' in done.stderr
    assert 'did you mean exercises/mnist_pytorch.py' in done.stderr


@posix
def test_ctrl_c_reaches_the_script(tmp_path):
    (tmp_path / 'waits.py').write_text(
        "import sys, time\ntry:\n    print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(42)\n")
    command = [sys.executable, '-P', '-m', 'fewgpu.workshop', 'run', str(tmp_path / 'waits.py')]
    with subprocess.Popen(command, env={**os.environ, **PYTHONPATH}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 42


def test_the_registered_kernel_is_the_kits_own_python(tmp_path):
    done = workshop('kernel', JUPYTER_DATA_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert 'choose the kernel fewgpu' in done.stdout and str(ROOT / 'notebooks') in done.stdout
    kernel = json.loads((tmp_path / 'kernels/fewgpu/kernel.json').read_text())
    assert kernel['argv'][0] == sys.executable and kernel['display_name'] == 'fewgpu'


def test_jupyterlabs_pages_are_found_also_where_they_are_in_another_environment(monkeypatch, tmp_path):
    for variable in ('JUPYTER_PATH', 'JUPYTER_CONFIG_PATH'):
        monkeypatch.setenv(variable, str(tmp_path))
    here = lab.environment()
    assert all(str(tmp_path) in here[variable] for variable in ('JUPYTER_PATH', 'JUPYTER_CONFIG_PATH'))
    monkeypatch.setattr(sys, 'prefix', str(tmp_path))
    elsewhere = lab.environment()
    assert (Path(elsewhere['JUPYTERLAB_DIR']) / 'static/index.html').is_file()
    for variable, folders in elsewhere.items():
        assert all(Path(folder).is_dir() for folder in folders.split(os.pathsep)), folders
        assert folders.startswith(here.get(variable, ''))


def test_without_jupyterlab_a_sentence_says_what_to_do(monkeypatch):
    def missing(name: str) -> Any:
        raise lab.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(lab.metadata, 'files', missing)
    with pytest.raises(FileNotFoundError, match=r'pip install jupyterlab.*workshop\.py kernel'):
        lab.environment()


class Server:
    """A JupyterLab that `lab` started, in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        import pty

        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        self.runtime = folder / 'runtime'
        environment = {**os.environ, **PYTHONPATH, 'HOME': str(folder), 'JUPYTER_RUNTIME_DIR': str(self.runtime),
                       'JUPYTER_DATA_DIR': str(folder), 'JUPYTER_CONFIG_DIR': str(folder / 'config')}  # fmt: skip
        options = ['--no-browser', f'--port={self.port}', '--ServerApp.port_retries=0', '--IdentityProvider.token=abc']
        options += ['--allow-root'] if os.geteuid() == 0 else []
        keyboard, terminal = pty.openpty()
        self.log = (folder / 'log').open('w+')
        self.process = subprocess.Popen([sys.executable, '-P', '-m', 'fewgpu.workshop', 'lab', *options],
                                        cwd=folder, env=environment, stdin=terminal, stdout=self.log,
                                        stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        os.close(terminal)
        self.keyboard = keyboard

    def ask(self, path: str, data: dict | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(f'http://127.0.0.1:{self.port}/{path}?token=abc', data=body)
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
        return json.loads(text) if path.startswith('api/') else text

    def wait_until_it_answers(self) -> None:
        for _ in range(600):
            assert self.process.poll() is None, self.said()
            try:
                return self.ask('api/status') and None
            except OSError:
                time.sleep(0.1)
        raise AssertionError(self.said())

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """JupyterLab, where somebody has registered another Python as the kernel python3."""
    (tmp_path / 'kernels/python3').mkdir(parents=True)
    spec = {'argv': ['/another/python', '{connection_file}'], 'display_name': 'another', 'language': 'python'}
    (tmp_path / 'kernels/python3/kernel.json').write_text(json.dumps(spec))
    server = Server(tmp_path)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()
    os.close(server.keyboard)
    server.log.close()


@posix
@pytest.mark.slow
def test_lab_serves_the_lessons_in_the_kits_kernel_and_ctrl_c_leaves_nothing_behind(server):
    server.wait_until_it_answers()
    kernels = server.ask('api/kernelspecs')['kernelspecs']
    assert kernels['python3']['spec']['display_name'] == 'fewgpu'
    folders = {entry['name'] for entry in server.ask('api/contents')['content']}
    assert {'notebooks', 'exercises', 'solutions'} <= folders
    lesson = server.ask('api/contents/notebooks/08_mnist_gpipe.ipynb')
    assert lesson['content']['metadata']['kernelspec']['name'] in kernels
    page = server.ask('lab')
    assert '"preferredPath": "notebooks"' in page
    assert '"disabledExtensions": ["@jupyterlab/apputils-extension:announcements"' in page  # no question about news
    server.ask('api/kernels', {'name': 'python3'})
    running = subprocess.check_output(['ps', 'axww', '-o', 'args'], text=True)
    assert f'{sys.executable} -m ipykernel_launcher -f {server.runtime}' in running

    server.process.send_signal(signal.SIGINT)  # what Ctrl-C does in a terminal
    assert server.process.wait(timeout=30) == 0, server.said()
    assert 'Kernel shutdown' in server.said()
    left = {path.name for path in server.runtime.iterdir()} - {'jupyter_cookie_secret'}
    assert left == set()
