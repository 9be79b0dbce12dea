#!/usr/bin/env python3
"""The one command of the kit: `./workshop.py --help` (on Windows: `py workshop.py --help`).

On a fresh machine it first sets the kit up, once, in `.venv` beside this file. After that it only hands over to
`python -m fewgpu.workshop`. It needs nothing but a Python, and an old one can still read it, to say that it is old.
"""

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / '.venv'
PYTHON = VENV / ('Scripts/python.exe' if os.name == 'nt' else 'bin/python')
STAMP = VENV / 'set-up-complete'  # written last, so a set-up that was interrupted has none
LOG = VENV / 'set-up.log'
OLDEST = (3, 11)
CPU_BUILDS = 'https://download.pytorch.org/whl/cpu'  # PyTorch's own index of builds without CUDA
OFFLINE = r'NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|ReadTimeout|Connection refused'


def main(arguments: 'list[str]') -> int:
    """Set the kit up if need be, and run the command."""
    # This clone's library, whatever else is installed or named by the caller.
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(ROOT / 'lib'), os.environ.get('PYTHONPATH')]))
    inside = Path(sys.prefix).resolve() == VENV
    if not inside and this_environment_fits():
        return hand_over(sys.executable, '-P', '-m', 'fewgpu.workshop', *arguments)
    if not ready():
        if too_old(sys.version_info):
            sys.exit(too_old(sys.version_info))
        if inside:  # an environment cannot be rebuilt from within: let the Python that made it do that
            return hand_over(sys._base_executable, str(ROOT / 'workshop.py'), *arguments)
        with one_at_a_time():
            if not ready():  # a run that we waited for may have done it
                set_up()
    return hand_over(str(PYTHON), '-P', '-m', 'fewgpu.workshop', *arguments)


def hand_over(*command: str) -> int:
    """Become `command`; on Windows, where a program cannot, run it and return its exit code."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if os.name != 'nt':
        os.execv(command[0], command)
    with subprocess.Popen(command) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the command too: let it end in its own way
                return process.wait()


# Is there anything to do?


def too_old(version: 'tuple[int, ...]') -> str:
    """The sentence for a Python that is too old; empty if it is not."""
    if tuple(version[:2]) >= OLDEST:
        return ''
    return (
        'This is Python {}.{}, and the kit needs {}.{} or newer: install one (on a cluster: `module avail python`) '
        'and name it, for example `python3.12 workshop.py --help`.'.format(*tuple(version[:2]) + OLDEST)
    )


def pins() -> 'dict[str, str]':
    """What requirements.txt asks for, by name: {'torch': 'torch==2.13.0', ...}."""
    text = (ROOT / 'requirements.txt').read_text(encoding='utf-8')
    lines = (line.split('#')[0].strip() for line in text.splitlines())
    return {line.split('==')[0]: line for line in lines if line}


def this_environment_fits() -> bool:
    """Whether the Python that runs this file has this clone's fewgpu, and everything that the kit needs."""
    spec = importlib.util.find_spec('fewgpu')
    if spec is None or not spec.origin or Path(spec.origin).resolve().parent != ROOT / 'lib' / 'fewgpu':
        return False
    from importlib import metadata

    try:
        return all(metadata.distribution(name) for name in pins()) and torch_of_this_environment() is not None
    except metadata.PackageNotFoundError:
        return False


def torch_of_this_environment() -> 'Path | None':
    """The folder of the torch that this Python already has, if it is one that pyproject.toml accepts."""
    from importlib import metadata

    oldest = re.search(r'"torch>=([\d.]+)', (ROOT / 'pyproject.toml').read_text(encoding='utf-8')).group(1)
    try:
        torch = metadata.distribution('torch')
    except metadata.PackageNotFoundError:
        return None
    numbers = [tuple(int(part) for part in re.findall(r'\d+', text)[:2]) for text in (torch.version, oldest)]
    return Path(torch.locate_file('')).resolve() if numbers[0] >= numbers[1] else None


def fingerprint() -> str:
    """What a set-up was made from: when any of it changes, it is brought up to date by the next run."""
    facts = [(ROOT / name).read_bytes() for name in ('requirements.txt', 'pyproject.toml')]
    facts += [os.fsencode(str(VENV)), os.fsencode(str(PYTHON.resolve()))]  # the clone was moved; Python was replaced
    return hashlib.sha256(b'\0'.join(facts)).hexdigest()


def ready() -> bool:
    """Whether .venv is complete and up to date, and the torch that it builds upon is still there."""
    try:
        made_from, torch = STAMP.read_text(encoding='utf-8').splitlines()
    except (OSError, ValueError):
        return False
    return made_from == fingerprint() and PYTHON.exists() and os.path.isdir(os.path.join(torch, 'torch'))


# The set-up


@contextlib.contextmanager
def one_at_a_time():
    """Wait for another run that sets up the same clone. A lock ends with the process that holds it, however it ends."""
    with open(str(ROOT / '.venv.lock'), 'w') as file:
        waiting = False
        while not locked(file):
            if not waiting:
                print('Another run is setting the kit up in this folder: waiting for it to end.', flush=True)
            waiting = True
            time.sleep(0.5)
        yield


def locked(file) -> bool:
    """Try to lock the file. pip inherits the lock: it counts until pip has ended, even if we are killed before."""
    try:
        if os.name == 'nt':
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(file.fileno(), True)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)  # a file system without locks: go on without
    return True


def set_up() -> None:
    """Make .venv, or complete it, and install the kit."""
    sys.stdout.reconfigure(errors='replace')  # a terminal need not know every character that pip prints
    if VENV.is_symlink():  # the environment of another clone, say, which a set-up would empty
        sys.exit('{} is a link to {}, which is not this clone\'s: remove the link, and run the command again.'.format(
            VENV, os.path.realpath(str(VENV))))
    again = 'brought up to date or completed' if VENV.exists() else 'set up: this happens once, and takes some minutes'
    print(f'The kit is being {again} ({VENV}).', flush=True)
    torch = torch_of_this_environment()
    packages = make_venv(torch)
    wanted = pins()
    if torch:
        print(f'  building on the torch of this environment: {torch}', flush=True)
        del wanted['torch']
    else:
        install_torch(wanted['torch'])
    done = pip(f'installing {len(wanted)} packages and the kit itself', *wanted.values(), '-e', '.')
    if done.returncode:
        stop(done.stdout)
    STAMP.write_text(f'{fingerprint()}\n{torch or packages}\n', encoding='utf-8')
    print('The kit is ready.\n', flush=True)


def make_venv(torch: 'Path | None') -> Path:
    """Make the virtual environment, on top of the current one if that has a torch; return its folder of packages."""
    import sysconfig

    if not (importlib.util.find_spec('venv') and importlib.util.find_spec('ensurepip')):
        sys.exit(
            'This Python cannot make virtual environments: install its venv module (on Debian and Ubuntu: '
            '`sudo apt install python{}.{}-venv`) and run the command again.'.format(*sys.version_info[:2])
        )
    packages = Path(sysconfig.get_path('purelib', 'venv', {'base': str(VENV), 'platbase': str(VENV)}))
    options = ['--system-site-packages'] if torch else []
    if can_be_completed():
        STAMP.unlink(missing_ok=True)
        for half in packages.glob('*.dist-info'):  # pip writes INSTALLER when a package is complete
            if not (half / 'INSTALLER').exists():
                shutil.rmtree(half)
    else:
        options.append('--clear')
    done = step('making a virtual environment', [sys.executable, '-m', 'venv', *options, str(VENV)])
    if done.returncode:
        stop(done.stdout)
    upon = packages / 'current_environment.pth'  # the current one may itself be virtual: name its folder as well
    upon.write_text(f'{torch}\n' if torch else '', encoding='utf-8')
    LOG.write_text(done.stdout, encoding='utf-8')
    return packages


def can_be_completed() -> bool:
    """Whether there is a .venv that was made in this place and whose Python is of this one's version."""
    try:
        made_here = f' {VENV}\n' in (VENV / 'pyvenv.cfg').read_text(encoding='utf-8')
        version = subprocess.check_output([str(PYTHON), '-c', 'import sys; print(sys.version_info[:2])'], text=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return made_here and version.strip() == str(sys.version_info[:2])


def install_torch(pin: str) -> None:
    """Install torch: the CPU build on a Linux machine without a GPU, for the other is a very large download."""
    sources = [[pin]]
    # A cluster's login node has no GPU, but its jobs may have.
    gpu = os.path.exists('/dev/nvidia0') or shutil.which('nvidia-smi') or shutil.which('sbatch')
    if sys.platform.startswith('linux') and not gpu:
        there = ['--extra-index-url', CPU_BUILDS, '--retries', '1', '--timeout', '15']
        sources = [[pin + '+cpu'], [pin + '+cpu', *there], [pin]]
    for number, source in enumerate(sources, start=1):
        if number == 3:
            print('  found no CPU build of torch; the usual one is a large download (some GB)', flush=True)
        done = pip(f'installing {source[0]}', *source)
        missing = 'No matching distribution' in done.stdout and not (number == 1 and re.search(OFFLINE, done.stdout))
        if done.returncode == 0:
            return
        if not missing:
            break
    stop(done.stdout)


def pip(title: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run pip in .venv, with its output in the log."""
    command = [str(PYTHON), '-m', 'pip', 'install', '--no-input', '--progress-bar', 'off', *arguments]
    done = step(title, command)
    with LOG.open('a', encoding='utf-8') as log:
        log.write(f'\n# {title}\n{done.stdout}')
    return done


def step(title: str, command: 'list[str]') -> subprocess.CompletedProcess:
    """Run one command of the set-up quietly; a terminal shows the line that it is at. Returns all that it printed."""
    started, lines, live = time.monotonic(), [], sys.stdout.isatty()
    print(f'  {title} ...', end='\n' if live else '', flush=True)
    room = shutil.get_terminal_size().columns - 1
    settings = {**os.environ, 'PIP_USER': '0', 'PIP_DISABLE_PIP_VERSION_CHECK': '1', 'PYTHONIOENCODING': 'utf-8'}
    with subprocess.Popen(
        command, cwd=str(ROOT), env=settings, close_fds=False, encoding='utf-8', errors='replace',
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        for line in process.stdout:
            lines.append(line)
            if live:
                print('\r' + f'    {line.strip()}'[:room].ljust(room), end='', flush=True)
    done = f" {'failed' if process.returncode else 'done'} after {time.monotonic() - started:.0f} s"
    print('\r' + f'   {done}'.ljust(room) if live else done, flush=True)
    return subprocess.CompletedProcess(command, process.returncode, ''.join(lines))


# When it goes wrong


def stop(output: str) -> None:
    """End with one sentence that says what to do; what is not foreseen is shown as it was printed."""
    if re.search(r'No space left|Disk quota exceeded|Errno (28|122)\b', output):
        sys.exit(sentence(errno.ENOSPC))
    if re.search(OFFLINE, output):
        sys.exit(
            'The packages could not be fetched, for there is no network here: connect once for the set-up (on a '
            'cluster: run it on the login node; behind a proxy: set HTTPS_PROXY), then run the command again.'
        )
    if 'No matching distribution' in output:
        wanted = re.findall(r'No matching distribution found for (\S+)', output)[-1]
        sys.exit(
            'pip found no {} for Python {}.{}: check the network, or name another Python, for example '
            '`python3.12 workshop.py --help`.'.format(wanted, *sys.version_info[:2])
        )
    tail = ''.join(output.splitlines(True)[-20:])
    sys.exit(f'\n{tail}\nThe set-up failed, and above is its end (all of it: {LOG}). Run the command again to go on.')


def sentence(code: 'int | None') -> str:
    """The sentence for an operating system's error; empty if there is none."""
    if code in (errno.ENOSPC, getattr(errno, 'EDQUOT', errno.ENOSPC)):
        return f'The disk, or your quota, is full: free some 3 GB for {ROOT}, then run the command again to go on.'
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f'{ROOT} cannot be written to: copy the kit to a folder of your own, and run it there.'
    return ''


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print('\nStopped. Run the same command again to go on.', file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        sys.exit(sentence(error.errno) or f'The set-up failed: {error}')
