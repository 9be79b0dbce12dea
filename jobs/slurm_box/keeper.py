"""The keeper of a box: one process that starts its daemons, takes orders, and ends everything.

It ends when it is told to stop, when it is killed (its children notice), and when whoever started it goes before it
said that the box may stay.
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from slurm_box import config
from slurm_box.folder import Box, BoxError, claim, make_gpus, program, saved
from slurm_box.processes import SUBREAPER, be_localhost, daemon, end_all, prctl, reap, tend

PATIENCE = 120   # seconds until a daemon or a node must be ready; on an idle machine they are within one
UP = ['idle'], ['mixed'], ['allocated'], ['completing']
LOOK = 0.05      # seconds between two looks
ANSWER = 15      # seconds that a command of Slurm may take


class PortTaken(Exception):
    """Somebody took a port between our choice and its use."""


class Keeper:
    """Starts, watches and ends munged, slurmctld and one slurmd a node."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.running: dict[str, int] = {}   # process ids of daemons, and of the tenders of nodes
        self.stays = False                  # also when who started it goes
        self.environment = {**os.environ, **box.environment()}

    def start(self) -> None:
        """Start everything and wait until all nodes are idle. Raises BoxError."""
        make_gpus(self.box)
        for folder in ('state', 'spool'):
            (self.box.folder / folder).mkdir(exist_ok=True)
        self._start_munged()
        for left in reversed(range(5)):
            config.write(self.box)
            try:
                self._start_slurm()
                return
            except PortTaken:
                if not left:
                    raise BoxError('Other programs took the ports of this Slurm: start it again.') from None
                for name in (*self.box.names, 'slurmctld'):
                    self.end(name)

    def _start_munged(self) -> None:
        box, key = self.box, self.box.folder / 'munge.key'
        subprocess.run([program('mungekey'), '--create', '--force', f'--keyfile={key}'], check=True)
        self.running['munged'] = daemon(
            [program('munged'), '--foreground', '--force',   # also in a folder that root alone may enter
             f'--key-file={key}', f'--socket={box.munge}',
             f'--pid-file={box.folder}/munged.pid', f'--seed-file={box.folder}/munged.seed'],
            str(box.log('munged')), self.environment).pid
        self._wait('munged', lambda: _answers(box.munge))

    def _start_slurm(self) -> None:
        self.running['slurmctld'] = daemon([program('slurmctld'), '-D', '-c'], f'{self.box.folder}/slurmctld.out',
                                           self.environment).pid
        self._wait('slurmctld', lambda: self._ask('scontrol', 'ping')[0] == 0)
        for name in self.box.names:
            self.boot(name)
        for name in self.box.names:
            self.wait_for_node(name)

    def boot(self, name: str) -> None:
        """Start the slurmd of a node that does not run. Raises BoxError."""
        if self.is_running(name):
            raise BoxError(f'{name} runs already.')
        for needed in ('munged', 'slurmctld'):
            if not self.is_running(needed):
                raise BoxError(f'{needed} has ended, and no node can do without it: stop and start this Slurm.')
        command = [program('slurmd'), '-D', '-N', name]
        output = f'{self.box.folder}/{name}.out'
        self.running[name] = tend(lambda: daemon(command, output, self.environment))

    def wait_for_node(self, name: str) -> None:
        """Wait until the controller may give jobs to this node."""
        self._wait(name, lambda: self._ask('sinfo', '-hN', '-n', name, '-o', '%T')[1].split()[:1] in UP)

    def crash(self, name: str) -> None:
        """Cut the power of a node, and tell the controller, which would otherwise notice after minutes."""
        self.end(name)
        if self.is_running('munged') and self.is_running('slurmctld'):
            self._ask('scontrol', 'update', f'nodename={name}', 'state=down', 'reason=power cut')

    def end(self, name: str) -> None:
        """End a daemon, and of a node all that came from it."""
        process = self.running.pop(name, None)
        if process is None:
            return
        os.kill(process, signal.SIGTERM if name in self.box.names else signal.SIGKILL)
        try:
            os.waitpid(process, 0)
        except ChildProcessError:
            pass

    def is_running(self, name: str) -> bool:
        """Whether a daemon, or anything of a node, is there."""
        ended = reap()
        self.running = {name: process for name, process in self.running.items() if process not in ended}
        return name in self.running

    def _ask(self, *command: str) -> tuple[int, str]:
        try:
            done = subprocess.run([program(command[0]), *command[1:]], env=self.environment, text=True,
                                  capture_output=True, timeout=ANSWER)
        except subprocess.TimeoutExpired:   # munged or slurmctld has just ended
            return 1, ''
        return done.returncode, done.stdout

    def _wait(self, name: str, ready) -> None:
        """Wait until `ready()`. Raises BoxError if the daemon ends before, or takes too long; PortTaken."""
        until = time.monotonic() + PATIENCE
        while not ready():
            ended = not self.is_running(name)
            if ended and 'in use' in self._last_words(name):
                raise PortTaken
            if ended or time.monotonic() > until:
                happened = 'ended at once' if ended else f'was not ready after {PATIENCE} seconds'
                raise BoxError(f'{name} {happened}: {self._last_words(name)}')
            if self.stays:
                time.sleep(LOOK)
            elif select.select([sys.stdin], [], [], LOOK)[0]:
                raise BoxError('whoever started this has gone')

    def _last_words(self, name: str) -> str:
        said = []
        for path in (self.box.log(name), self.box.folder / f'{name}.out'):
            if path.exists():
                said += path.read_text(errors='replace').splitlines()
        telling = [line for line in said if 'fatal' in line or 'rror' in line]
        return ' / '.join((telling or said)[-2:]) or 'it said nothing'


def _answers(path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def answer(keeper: Keeper, order: list[str]) -> str:
    """Do what an order says; the answer is 'ok ...' or a sentence that says why not."""
    name = ' '.join(order[1:])
    try:
        if order == ['status']:
            daemons = ('munged', 'slurmctld', *keeper.box.names)
            return 'ok ' + ' '.join(name for name in daemons if keeper.is_running(name))
        if name not in keeper.box.names:
            return f'There is no node {name}: the nodes are {", ".join(keeper.box.names)}.'
        if order[0] == 'crash':
            keeper.crash(name)
        else:
            keeper.boot(name)
            keeper.wait_for_node(name)
        return 'ok'
    except BoxError as error:
        return str(error)


def serve(keeper: Keeper, door: socket.socket) -> None:
    """Take orders until one says stop, until who started the box goes without having said that it stays, or until
    somebody has taken away its folder, or that part of it by which `stop` finds us."""
    watched: list[IO | socket.socket] = [sys.stdin, door]
    while keeper.box.door.exists() and saved(keeper.box.folder):
        ready = select.select(watched, [], [], 1.0)[0]
        if sys.stdin in ready:
            if os.read(0, 100) != b'stay\n':
                return
            watched.remove(sys.stdin)
            keeper.stays = True
        if door in ready:
            with door.accept()[0] as visitor:
                order = visitor.recv(1000).decode().split()
                if order == ['stop']:
                    return
                try:
                    visitor.sendall(answer(keeper, order).encode())
                except OSError:
                    pass   # the visitor did not wait


def main(folder: str, *counts: str) -> None:
    """Run a box until it stops.

    Standard input and output are pipes of who started us: one line says how the start went. Only we make the folder:
    then somebody takes it away, too, whenever the one who started us is killed.
    """
    def stop(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    box = Box(Path(folder), *map(int, counts))
    try:
        own = os.fstat(claim(box))
    except BoxError as error:
        print(error, flush=True)
        return
    try:
        _keep(box)
    except (BoxError, OSError, subprocess.CalledProcessError) as error:
        with suppress(OSError):   # if there is somebody to hear it
            print(error, flush=True)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all()
        with suppress(OSError):   # there is none, or by now it is another box's
            if os.path.samestat(own, box.folder.stat()):
                shutil.rmtree(box.folder, ignore_errors=True)


def _keep(box: Box) -> None:
    box.save()
    with open(box.log('keeper'), 'ab') as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    prctl(SUBREAPER, 1)   # if a tender is killed, what it tended comes to us
    be_localhost()
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(box.door))
    door.listen()
    keeper = Keeper(box)
    keeper.start()
    print('ready', flush=True)
    serve(keeper, door)
