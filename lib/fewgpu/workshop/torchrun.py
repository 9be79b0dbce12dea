"""torchrun on each node of a job: python -m fewgpu.workshop.torchrun --ranks N --run FOLDER PROGRAM ARGUMENT...

Under Slurm a job step has one of these on every node (`srun --ntasks-per-node=1`), and each starts N ranks:

    node 0   torchrun, with the store ◄─┐     rank 0, rank 1, ...
    node 1   torchrun ──────────────────┤     rank N, rank N+1, ...
    node 2   torchrun ──────────────────┘     ...

It is torch's own agent (torch.distributed.run's), and differs in three ways. The nodes' order is Slurm's, and the store
listens where only they need it (see `fewgpu.workshop.store`). TERM, Ctrl-C and USR1 are passed on to the ranks, which
save a checkpoint and end (see `fewgpu.stopping`); so they do if the script that started this was killed. Output is in
FOLDER, a file a rank, and rank 0's is shown here, too. Without Slurm this machine is the only node.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from fewgpu.workshop import failed
from fewgpu.workshop.failed import Failed, node_here
from fewgpu.workshop.machine import cores
from fewgpu.workshop.rank import log_of, pid_of
from fewgpu.workshop.store import NoStore, address_here, find_store, interface_of, open_store

_LOOK = 0.1          # seconds between two looks at rank 0's output, and for signals to pass on
_LAST_WORDS = 3.0    # seconds in which another node may tell that a rank of it was the cause
_GRACE = 6           # seconds that ranks have to end when one of them has failed


def main() -> int:
    """Start the ranks of this node; the exit status: that of the rank that failed, or 0."""
    asked = _Asked()
    args = _arguments()
    args.run.mkdir(parents=True, exist_ok=True)
    node, nodes = int(os.environ.get('SLURM_NODEID', 0)), int(os.environ.get('SLURM_STEP_NUM_NODES', 1))
    try:
        address = address_here()
        store = _meet(args, node, address)
    except NoStore as error:
        print(f'{node_here()}: {error}', file=sys.stderr)
        return 1
    _settle(address, args.ranks)
    ranks = _Ranks(asked, args.run, range(node * args.ranks, (node + 1) * args.ranks))
    with ranks.looked_after():
        return _launch(args, store, address, node, nodes, ranks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser('torchrun', description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ranks', type=int, required=True, metavar='N', help='to start on this node')
    parser.add_argument('--run', type=Path, required=True, metavar='FOLDER', help='of this job; all nodes see it')
    parser.add_argument('--time_limit', type=float, default=300.0, metavar='SECONDS',
                        help='to wait for the first node (300)')
    parser.add_argument('program')
    parser.add_argument('arguments', nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.ranks < 1:
        parser.exit(2, f'torchrun: --ranks starts at least one rank a node, not {args.ranks}\n')
    return args


class _Asked:
    """The signals that have come; from now on they end nothing here."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if number in self.signals:   # somebody is impatient
                raise KeyboardInterrupt
            self.signals.append(number)
            number = signal.SIGTERM
        self.signals.append(number)

    def look(self) -> None:
        """Who was killed cannot pass on a signal."""
        if os.getppid() != self._parent and signal.SIGTERM not in self.signals:
            self.signals.append(signal.SIGTERM)


def _meet(args: argparse.Namespace, node: int, address: str) -> Any:
    """The store. There is one a run of a job step: a job that goes on has another one."""
    turn = '.'.join(os.environ.get(name, '0') for name in ('SLURM_RESTART_COUNT', 'SLURM_STEP_ID'))
    file = args.run / f'store-{turn}'
    if node:
        return find_store(file, args.time_limit)
    failed.forget(args.run)   # before anybody else starts
    return open_store(file, address)


def _settle(address: str, ranks: int) -> None:
    """What libraries have to know in the ranks, where nobody has told them."""
    if interface := interface_of(address):   # they would look up the host's name, which may be of another network
        os.environ.setdefault('GLOO_SOCKET_IFNAME', interface)
        os.environ.setdefault('NCCL_SOCKET_IFNAME', interface)
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, cores() // ranks)))
    os.environ.setdefault('TORCH_ELASTIC_SHUTDOWN_TIMEOUT', str(_GRACE))


def _launch(args: argparse.Namespace, store: Any, address: str, node: int, nodes: int, ranks: '_Ranks') -> int:
    import logging

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from fewgpu.workshop.rendezvous import SlurmRendezvous
    logging.getLogger('torch.distributed.elastic').setLevel(logging.CRITICAL)   # we tell what failed
    meeting = SlurmRendezvous(store, node, nodes)
    rendezvous_handler_registry.register(meeting.get_backend(), lambda _: meeting)
    rank = ['-u', '-m', 'fewgpu.workshop.rank', str(args.run), args.program, *args.arguments]
    try:
        with tempfile.TemporaryDirectory(prefix='torchrun-') as folder:   # where it would leave one of its own
            config = LaunchConfig(
                min_nodes=nodes, max_nodes=nodes, nproc_per_node=args.ranks, run_id=meeting.get_run_id(),
                rdzv_backend=meeting.get_backend(), max_restarts=0, local_addr=address,
                logs_specs=DefaultLogsSpecs(log_dir=folder),
                signals_to_handle='SIGHUP,SIGQUIT')   # the others are noted here
            elastic_launch(config, sys.executable)(*rank)
    except ChildFailedError as error:
        return _status_of(error, args.run, ranks)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _status_of(error: Any, run: Path, ranks: '_Ranks') -> int:
    """The exit status, as a shell has it, of the rank of this node that failed first. Ranks that died without a word
    are written down."""
    failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
    ended_here = ranks.ended_late(failures)   # which torchrun does to those that are left when one has failed
    for rank, code in failures.items():
        if code < 0 and rank not in ended_here:
            hint = ' (the system does that when memory runs out)' if -code == signal.SIGKILL else ''
            Failed(rank, node_here(), 128 - code, f'it was killed by {signal.Signals(-code).name}{hint}').leave(run)
        elif code > 0:
            Failed(rank, node_here(), code, f'it died with exit status {code}').leave(run)
    deadline = time.monotonic() + _LAST_WORDS
    while all(one.is_of_another for one in failed.all_of(run)):
        if time.monotonic() > deadline:   # nobody knows another cause than those who had to be killed
            for rank in (rank for rank in ended_here if failures[rank] == -signal.SIGKILL):
                Failed(rank, node_here(), 1, f'it hung: others waited for it in vain, and in {_GRACE} s it did not end '
                                             f'when it was told to').leave(run)
            break
        time.sleep(_LOOK)   # when we end, Slurm ends the node of the cause
    code = next(code for rank, code in failures.items() if rank not in ended_here)
    return code if code > 0 else 128 - code


class _Ranks:
    """What this node's ranks get and give while they run: signals go on to them, and rank 0's output comes here."""

    def __init__(self, asked: _Asked, run: Path, own: range) -> None:
        self._asked, self._run, self._own = asked, run, own
        self._passed = dict.fromkeys(own, 0)        # signals
        self._processes: dict[int, int] = {}
        self._gone: dict[int, float] = {}           # since when
        self._log = log_of(run, 0)
        self._at = self._log.stat().st_size if self._log.exists() else 0   # a job that goes on has written there before
        for rank in own:
            pid_of(run, rank).unlink(missing_ok=True)

    @contextlib.contextmanager
    def looked_after(self) -> Iterator[None]:
        """Meanwhile a thread does it."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(_LOOK):
                self._look()
            self._look()
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            yield
        finally:
            ended.set()
            worker.join()

    def ended_late(self, failed: Collection[int]) -> set[int]:
        """Of the ranks that failed those that ended well after the first of them. (Others may have come to their end
        long before.)"""
        now = time.monotonic()
        ends = {rank: self._gone.get(rank, now) for rank in failed}
        return {rank for rank, end in ends.items() if end > min(ends.values()) + _GRACE / 2}

    def _look(self) -> None:
        self._asked.look()
        for rank in self._own:
            if rank not in self._processes:
                with contextlib.suppress(OSError, ValueError):   # it is not so far yet
                    self._processes[rank] = int(pid_of(self._run, rank).read_text(encoding='utf-8'))
            if rank in self._processes and rank not in self._gone:
                self._tell(rank, self._processes[rank])
        if 0 in self._own:
            self._at = _show(self._log, self._at)

    def _tell(self, rank: int, process: int) -> None:
        try:
            os.kill(process, 0)
            for number in self._asked.signals[self._passed[rank]:]:
                self._passed[rank] += 1
                if number != signal.SIGINT:   # for which it was noted TERM, too
                    os.kill(process, number)
        except ProcessLookupError:
            self._gone[rank] = time.monotonic()


def _show(file: Path, at: int) -> int:
    """Print what a file holds from a place on; the place where it ends."""
    if file.exists():
        with open(file, 'rb') as log:
            log.seek(at)
            text = log.read()
        sys.stdout.write(text.decode('utf-8', 'replace'))
        sys.stdout.flush()
        at += len(text)
    return at


if __name__ == '__main__':
    sys.exit(main())
