"""The folder of a box: everything that a Slurm on this machine writes is in it, and it goes when the box stops."""

import fcntl
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

INSTALL = 'apt-get install --no-install-recommends slurm-wlm munge'
SBIN = os.pathsep + os.pathsep.join(('/usr/local/sbin', '/usr/sbin', '/sbin'))
SOCKET_PATH = 107   # bytes that Linux allows


class BoxError(Exception):
    """One sentence for who typed the command, with the remedy."""


@dataclass(frozen=True)
class Box:
    """A Slurm with `nodes` virtual nodes, each of which claims `cpus` CPUs and `gpus` GPUs, whatever is there."""

    folder: Path
    nodes: int = 2
    cpus: int = 2
    gpus: int = 2

    @property
    def names(self) -> list[str]:
        return [f'node{number + 1}' for number in range(self.nodes)]

    @property
    def conf(self) -> Path:
        return self.folder / 'slurm.conf'

    @property
    def munge(self) -> Path:
        """The socket of munged."""
        return self.folder / 'munge.socket'

    @property
    def door(self) -> Path:
        """The socket where the keeper takes orders."""
        return self.folder / 'keeper.socket'

    def log(self, daemon: str) -> Path:
        return self.folder / f'{daemon}.log'

    def environment(self) -> dict[str, str]:
        """What sbatch and the others need to find this Slurm."""
        return {'SLURM_CONF': str(self.conf)}

    def save(self) -> None:
        (self.folder / 'box.json').write_text(json.dumps({**asdict(self), 'folder': None}))


def saved(folder: Path) -> Box | None:
    """The box that was started in this folder, if there is one (it may have ended)."""
    try:
        return Box(**{**json.loads((folder / 'box.json').read_text()), 'folder': folder})
    except (OSError, ValueError):
        return None


def default_folder() -> Path:
    return Path(tempfile.gettempdir()) / 'slurm-in-a-box'


def program(name: str) -> str:
    """Where a program of Slurm is. Raises BoxError."""
    found = shutil.which(name, path=os.environ.get('PATH', os.defpath) + SBIN)
    if found is None:
        raise BoxError(f'There is no {name} here: install Slurm, on Debian or Ubuntu with `{INSTALL}`.')
    return found


def claim(box: Box) -> int:
    """Make the folder and lock it; the lock lasts while the file descriptor that is returned is open anywhere.

    Raises BoxError if a box cannot be there, or one is there already.
    """
    folder = box.folder
    if not re.fullmatch(r'[\w./-]+', str(folder), re.ASCII):
        raise BoxError(f'Slurm cannot read the path {str(folder)!r}: choose a --folder of letters, digits and ./_-')
    longest = f'{folder}/spool/{box.names[-1]}/{box.names[-1]}_1234567.4294967295'   # of a job's step
    if len(longest) > SOCKET_PATH:
        raise BoxError(f'The path {folder} is too long for a socket: choose a --folder of at most '
                       f'{SOCKET_PATH - len(longest) + len(str(folder))} characters.')
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise BoxError(f'{folder} belongs to somebody else: choose another --folder.')
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino != folder.stat().st_ino:
            raise BlockingIOError   # the box that had it has just gone
        _clear(folder)
    except BlockingIOError:
        raise BoxError(f'A Slurm runs already in {folder}: `jobs/slurm-in-a-box status` shows it, `stop` ends it, '
                       'and --folder chooses another place.') from None
    except OSError as error:
        raise BoxError(f'Cannot write to {folder} ({error.strerror}): choose another --folder.') from None
    return lock


def _clear(folder: Path) -> None:
    """Take away what a box left that was killed."""
    left = list(folder.iterdir())
    if left and saved(folder) is None:
        raise BoxError(f'{folder} holds other things: choose a --folder that is new or empty.')
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.chmod(0o755)   # munged refuses a folder that others may write to
    probe = folder / 'box.json'
    probe.touch()         # a folder that cannot be written is known now


def wait_for_end(folder: Path, order: Callable[[], None] = lambda: None, seconds: float = 0) -> bool:
    """Give this order to a box; whether nothing of it runs any more after so many seconds at most.

    Its lock is looked at, which its processes hold until they have ended: the folder is gone sooner.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True   # it is gone
    order()
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                if time.monotonic() >= until:
                    return False
            time.sleep(0.05)
    finally:
        os.close(lock)


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nobody has now."""
    with_ports = [socket.create_server(('127.0.0.1', 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in with_ports]
    for server in with_ports:
        server.close()
    return ports


def make_gpus(box: Box) -> None:
    """Devices that Slurm may count and hand out as GPUs: each is another /dev/null. Raises BoxError."""
    devices = box.folder / 'dev'
    devices.mkdir(exist_ok=True)
    for number in range(box.gpus):
        path = devices / f'nvidia{number}'
        if path.exists():
            continue
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except OSError as error:
            raise BoxError(f'This machine allows no stand-ins for GPUs (mknod: {error.strerror}): '
                           'start with --gpus 0.') from None
