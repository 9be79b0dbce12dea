"""What may be concluded from seconds: by how much speeds must differ, and whether the machine was quiet."""

import threading
import time

import torch

from fewgpu.workshop import machine

NOISE = 0.05    # speeds that are closer to each other are taken for equal
QUIET = 0.8     # of a core, that a thread gets which wants all of it, where no other program is at work
TURN = 0.05     # seconds of a look


def faster(speed: float, than: float) -> bool | None:
    """Is the one speed higher than the other? None where they differ by less than NOISE."""
    if than >= speed * (1 + NOISE) and than > speed:   # two zeros are equal
        return False
    return True if speed >= than * (1 + NOISE) and speed > than else None


def both(*verdicts: bool | None) -> bool | None:
    """No if one is no; else None if one is not decided; else yes."""
    if any(verdict is False for verdict in verdicts):
        return False
    return None if None in verdicts else True


class Quiet:
    """Did other programs leave this machine alone while something was timed?

        quiet = Quiet()
        for _ in range(rounds):
            quiet.look()
            ...                       # timed
        quiet.verdict(criterion(...))   # None if it was not
    """

    def __init__(self, threads: int = 2) -> None:
        self._threads, self._shares = min(threads, machine.cores()), []

    def look(self) -> None:
        """See what a core is left to threads that compute for a moment: TURN seconds."""
        self._shares.append(min(shares_of_cores(self._threads)))

    @property
    def share(self) -> float:
        """Of a core: what the thread that got least was given, by the median look. Raises ValueError without one."""
        if not self._shares:
            raise ValueError('look at the machine while something is timed, once at least')
        return sorted(self._shares)[(len(self._shares) - 1) // 2]

    def verdict(self, confirmed: bool | None) -> bool | None:
        """The same, but None if the machine was busy."""
        return confirmed if self.share > QUIET else None

    @property
    def note(self) -> str:
        """To add to what was found: nothing, or that the machine was busy."""
        return '' if self.share > QUIET else (f'; this machine was busy with other programs meanwhile: a thread got '
                                              f'{self.share:.0%} of a core')


def shares_of_cores(threads: int) -> list[float]:
    """The share of a core that each of so many threads is given, all of which compute for TURN seconds."""
    shares: list[float] = []
    start = threading.Barrier(threads)

    def compute() -> None:
        torch.get_num_threads()   # or torch's lazy set-up would undo the next line
        torch.set_num_threads(1)
        matrix, out = torch.full((256, 256), 1 / 256), torch.empty(256, 256)
        start.wait()
        begun, computed = time.perf_counter(), time.thread_time()
        while time.perf_counter() < begun + TURN:
            torch.mm(matrix, matrix, out=out)   # other threads run meanwhile
        shares.append((time.thread_time() - computed) / (time.perf_counter() - begun))

    before = torch.get_num_threads()
    workers = [threading.Thread(target=compute) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.set_num_threads(before)   # what a thread sets is the default of those to come
    return shares
