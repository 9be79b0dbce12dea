"""The commands of jobs/slurm-in-a-box."""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from slurm_box import folder
from slurm_box.folder import Box, BoxError, claim, default_folder, program, saved, wait_for_end
from slurm_box.processes import SIGNAL_AT_PARENTS_DEATH, be_localhost, prctl

NEEDED = 'munged', 'mungekey', 'slurmctld', 'slurmd', 'srun', 'sbatch', 'scontrol', 'sinfo'


def main(arguments: list[str], usage: str) -> int:
    """Do what the command line says; the exit status."""
    options = parser(usage).parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = options.do(options)
        sys.stdout.flush()
        return status
    except BoxError as error:
        print(f'slurm-in-a-box: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    except BrokenPipeError:   # of `status | head`, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


class Terminated(BaseException):
    """Somebody ends us with SIGTERM."""


def _terminated(*_: object) -> None:
    raise Terminated


def parser(usage: str) -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser('slurm-in-a-box', description=usage,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(required=True, metavar='COMMAND')

    def command(do: Callable[[argparse.Namespace], int], text: str, *, starts: bool = False) -> argparse.ArgumentParser:
        one = commands.add_parser(do.__name__, help=text, description=text)
        one.set_defaults(do=do)
        one.add_argument('--folder', type=Path, default=default_folder(),
                         help='where it keeps its files while it runs; another folder, another Slurm (%(default)s)')
        if starts:
            one.add_argument('--nodes', type=_count(1), default=2, help='virtual nodes (%(default)s)')
            one.add_argument('--cpus', type=_count(1), default=2, help='CPUs that each claims (%(default)s)')
            one.add_argument('--gpus', type=_count(0), default=2, help='stand-ins for GPUs on each (%(default)s)')
        return one

    command(start, 'Start it, and leave it running.', starts=True)
    command(stop, 'End it, and its jobs, and leave nothing.')
    command(status, 'What runs?')
    command(env, 'Print what a shell must set: eval "$(jobs/slurm-in-a-box env)"')
    runs = command(run, 'Start it, run a command in its environment, stop it.', starts=True)
    runs.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND ...')
    for do, text in ((crash, 'Cut the power of a node: all its processes end at once.'),
                     (boot, 'Start a node that crashed.')):
        command(do, text).add_argument('node')
    return whole


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 64:
            raise argparse.ArgumentTypeError(f'{text!r} must be a number from {least} to 64')
        return int(text)
    return count


def start(options: argparse.Namespace) -> int:
    box = _box(options)
    with Owned(box) as owned:
        owned.may_stay()
    again = '' if box.folder == default_folder() else f' --folder {box.folder}'
    print(f'Slurm runs ({_size(box)}). For this shell:')
    print(f'    eval "$(jobs/slurm-in-a-box env{again})"')
    return 0


def run(options: argparse.Namespace) -> int:
    if options.command[:1] == ['--']:
        del options.command[0]
    if not options.command:
        raise BoxError('Say what to run: jobs/slurm-in-a-box run COMMAND ...')
    box = _box(options)
    with Owned(box):
        try:
            child = subprocess.Popen(options.command, env={**os.environ, **box.environment()},
                                     preexec_fn=_of_a_box)
        except OSError as error:
            raise BoxError(f'Cannot run {options.command[0]}: {error.strerror}.') from None
        while True:
            try:
                status = child.wait()
                return status if status >= 0 else 128 - status
            except KeyboardInterrupt:
                pass   # the command has got it, too
            except Terminated:
                child.terminate()


def _of_a_box() -> None:
    """What a command of `run` has in common with jobs: srun works there, and it ends with its box."""
    be_localhost()
    prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGTERM)


def stop(options: argparse.Namespace) -> int:
    box = _running(options)

    def order() -> None:
        with socket.socket(socket.AF_UNIX) as keeper, suppress(OSError):   # it was killed, and the rest ends by itself
            keeper.connect(str(box.door))
            keeper.sendall(b'stop')

    if not wait_for_end(box.folder, order, seconds=60):
        raise BoxError(f'It does not end: look with ps for processes that have {box.folder} in their command.')
    if box.folder.exists():   # its keeper could not
        os.close(claim(box))
        (box.folder / 'box.json').unlink()
        with suppress(OSError):   # where a disk is mounted, say
            box.folder.rmdir()
    print(f'Slurm has ended. For shells that used it: unset {" ".join(box.environment())}')
    return 0


def status(options: argparse.Namespace) -> int:
    box = _running(options)
    runs = _order(box, 'status').split()
    states = {}
    if {'munged', 'slurmctld'} <= set(runs):   # or sinfo would wait for them
        asked = subprocess.run([program('sinfo'), '-hN', '-p', 'cpu', '-o', '%N %T'], text=True, capture_output=True,
                               env={**os.environ, **box.environment()})
        states = dict(line.split() for line in asked.stdout.splitlines())
    print(f'Slurm in {box.folder} ({_size(box)}):')
    whole = True
    for name in ('munged', 'slurmctld', *box.names):
        fine = name in runs
        whole &= fine
        print(f'  {name:10}', 'has ended' if not fine else states.get(name, 'runs'))
    if not whole:
        print(f'What has ended says why in {box.folder}/*.log; `boot` starts a node, and stop and start all.')
    return 0 if whole else 1


def env(options: argparse.Namespace) -> int:
    for name, value in _running(options).environment().items():
        print(f'export {name}={shlex.quote(value)}')
    return 0


def crash(options: argparse.Namespace) -> int:
    _order(_running(options), f'crash {options.node}')
    return 0


def boot(options: argparse.Namespace) -> int:
    _order(_running(options), f'boot {options.node}')
    return 0


def _box(options: argparse.Namespace) -> Box:
    return Box(options.folder.absolute(), options.nodes, options.cpus, options.gpus)


def _size(box: Box) -> str:
    return f'nodes: {box.nodes}; on each, CPUs: {box.cpus}, stand-ins for GPUs: {box.gpus}'


def _running(options: argparse.Namespace) -> Box:
    """The box of this folder. Raises BoxError if none was started there."""
    place = options.folder.absolute()
    box = saved(place)
    if box is None or options.do is not stop and wait_for_end(place):
        raise BoxError(f'No Slurm runs in {place}: jobs/slurm-in-a-box start')
    return box


def _order(box: Box, order: str) -> str:
    """What the keeper answers. Raises BoxError with what it says if it cannot."""
    with socket.socket(socket.AF_UNIX) as keeper:
        try:
            keeper.connect(str(box.door))
            keeper.sendall(order.encode())
            said = keeper.recv(100_000).decode()
        except OSError as error:
            said = f'The keeper of {box.folder} does not answer ({error.strerror}): stop and start it.'
    if said.split()[:1] != ['ok']:
        raise BoxError(said or f'The keeper of {box.folder} has ended: start it again.')
    return said.removeprefix('ok')


class Owned:
    """A box that stops when we leave, or end in whatever way, unless it `may_stay`."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def __enter__(self) -> 'Owned':
        if not sys.platform.startswith('linux'):
            raise BoxError('Slurm needs Linux: try this in a virtual machine or a container.')
        if os.geteuid():
            raise BoxError('Only root can start a Slurm: use sudo, or a container where you are root.')
        for name in NEEDED:
            program(name)
        self.stays = False
        code = 'import sys; sys.path.insert(0, sys.argv[1]); from slurm_box.keeper import main; main(*sys.argv[2:])'
        self.keeper = subprocess.Popen(
            [sys.executable, '-B', '-c', code, str(Path(folder.__file__).parents[1]), *map(str, astuple(self.box))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd='/')
        try:
            said = self.keeper.stdout.readline().decode().strip()
            if said != 'ready':
                raise BoxError(said or 'The keeper of this Slurm was killed: start it again.')
        except BaseException:
            self.__exit__()
            raise
        return self

    def may_stay(self) -> None:
        self.stays = True
        self.keeper.stdin.write(b'stay\n')
        self.keeper.stdin.flush()

    def __exit__(self, *_: object) -> None:
        """Hang up, and wait until it has ended."""
        self.keeper.stdin.close()
        if not self.stays:
            self.keeper.wait()
