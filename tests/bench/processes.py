"""The contestant in other processes: torch.distributed.pipelining, one process a device."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.bench.work import Failed, Gradients, Work

ROOT = Path(__file__).resolve().parents[2]
_LOOPBACK = {'linux': 'lo', 'darwin': 'lo0'}.get(sys.platform)


class Pipelining:
    """The contestant, with or without recompute; several may share the processes."""

    engine = 'torch.distributed.pipelining'

    def __init__(self, processes: 'Processes', checkpoint: str) -> None:
        self.checkpoint, self._processes = checkpoint, processes

    def step(self) -> float:
        """Seconds from the first process's start to the last one's end."""
        replies = self._processes.ask('step', checkpoint=self.checkpoint)
        return max(r['end'] for r in replies) - min(r['start'] for r in replies)

    def threads(self) -> set[int]:
        """Intra-op threads that the processes use in a step."""
        return {r['threads'] for r in self._processes.ask('step', checkpoint=self.checkpoint)}

    def gradients(self) -> Gradients:
        """Of all stages, by way of files."""
        files = [reply['file'] for reply in self._processes.ask('save_gradients')]
        return {name: gradient for file in files for name, gradient in torch.load(file).items()}

    def forget(self) -> None:
        """Drop the gradients."""
        self._processes.ask('forget')


class Processes:
    """One process a stage. They stay for all rounds and are blocked while nothing is asked."""

    def __init__(self, work: Work, folder: Path) -> None:
        self._folder = folder
        self.idle_cpu_seconds = 0.0   #: CPU time that they used while nothing was asked of them
        self._replies: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._running: list[subprocess.Popen[str]] = []
        self._world_size = len(work.balance)
        torch.save(work, folder / 'work.pt')

    def start(self) -> None:
        """Start all processes; they get ready while this one goes on."""
        for rank in range(self._world_size):
            self._start(rank)

    def _start(self, rank: int) -> None:
        environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(
            [str(ROOT), str(ROOT / 'lib'), *filter(None, [os.environ.get('PYTHONPATH')])])}
        if _LOOPBACK:   # gloo would look up the name of the host, which many a laptop cannot
            environment.setdefault('GLOO_SOCKET_IFNAME', _LOOPBACK)
        with self._log(rank).open('w') as log:
            process = subprocess.Popen(
                [sys.executable, '-m', 'tests.bench.rank', str(self._folder), str(rank),
                 str(self._world_size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment)
        self._running.append(process)
        threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()

    def pids(self) -> list[int]:
        """Of the processes, in order of the ranks."""
        return [process.pid for process in self._running]

    def ask(self, what: str, **details: Any) -> list[dict]:
        """Let every process do it at the same time; their replies, in order of the ranks.

        Raises Failed, with the end of its messages, if a process died.
        """
        command = json.dumps({'do': what, **details}) + '\n'
        for rank, process in enumerate(self._running):
            try:
                process.stdin.write(command)
                process.stdin.flush()
            except BrokenPipeError:
                self._died(rank)
        replies: dict[int, dict] = {}
        while len(replies) < len(self._running):
            rank, line = self._replies.get()
            if not line:
                self._died(rank)
            replies[rank] = json.loads(line)
        self.idle_cpu_seconds += sum(reply['idle_cpu_seconds'] for reply in replies.values())
        return [replies[rank] for rank in range(len(self._running))]

    def close(self) -> None:
        """End the processes: they do when their input ends, at once, whatever they are doing."""
        for process in self._running:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._running:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _listen(self, rank: int, process: subprocess.Popen) -> None:
        for line in process.stdout:
            self._replies.put((rank, line))
        self._replies.put((rank, ''))

    def _log(self, rank: int) -> Path:
        return self._folder / f'rank-{rank}.log'

    def _died(self, rank: int) -> None:
        end = self._log(rank).read_text()[-2000:]
        raise Failed(f'process {rank} of torch.distributed.pipelining ended by itself; its last '
                     f'words:\n{end}')


@contextlib.contextmanager
def processes(work: Work) -> Iterator[Processes]:
    """Processes that end with the block, whatever happens inside."""
    with tempfile.TemporaryDirectory(prefix='fewgpu-bench-', ignore_cleanup_errors=True) as folder:
        started = Processes(work, Path(folder))
        try:
            started.start()
            yield started
        finally:
            started.close()
