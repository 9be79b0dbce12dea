"""What this machine is: cores, GPUs, versions, and how much a second core adds.

torch is imported where it is needed: the flags of the scripts ask for the cores without it.
"""

import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

_QUOTA = Path('/sys/fs/cgroup/cpu.max')   # what a container (a JupyterHub's, say) may use


def cores() -> int:
    """How many cores this process may use: of the machine, of its batch job, of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    try:
        quota, period = _QUOTA.read_text().split()
        allowed = min(allowed, max(1, int(quota) // int(period)))
    except (OSError, ValueError):   # no such file, or 'max': no quota
        pass
    return allowed or 1


def gpus() -> list[str]:
    """The names of the GPUs that torch sees."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def describe() -> dict[str, Any]:
    """What a report should say about the machine: plain values, ready for JSON."""
    import torch

    return {'system': f'{platform.system()} {platform.machine()}', 'cores': cores(), 'gpus': gpus(),
            'python': platform.python_version(), 'torch': torch.__version__,
            'cuda': torch.version.cuda}


def two_core_efficiency(threads: int = 2, seconds: float = 2.0) -> float:
    """How much `threads` cores do at once, as a share of `threads` times what one does.

    Each thread multiplies matrices on one core. 1.0 would be perfect; cores that share caches,
    memory, power or (as hyper-threads) the core itself stay below, and so does every pipeline on
    them; so do cores that other programs use: what one core does is counted by the second that
    it computes for us. One thread alone and all threads together take turns, so that the clock's
    ups and downs touch both; all turns together take about `seconds`.

    Raises ValueError if there is no thread or no time.
    """
    if threads < 1 or seconds <= 0:
        raise ValueError(f'measure at least one thread for more than 0 s, not {threads} for {seconds} s')
    turn = seconds / 8
    alone, together = [], []
    for _ in range(4):
        products, computed = _products(1, turn)
        alone.append(products / (computed or turn))   # some clocks of threads are coarse
        together.append(_products(threads, turn)[0] / turn)
    return sum(sorted(together)[1:3]) / sum(sorted(alone)[1:3]) / threads   # medians of four


def _products(threads: int, seconds: float) -> tuple[int, float]:
    """Matrix products that all threads together do in `seconds`, and the seconds of a core that they were given."""
    import torch

    done, computed = [0] * threads, [0.0] * threads
    started, stop = threading.Barrier(threads), threading.Event()
    before = torch.get_num_threads()

    def multiply(index: int) -> None:
        torch.get_num_threads()   # or torch's lazy set-up would undo the next line
        torch.set_num_threads(1)
        matrix = torch.full((256, 256), 1 / 256)   # products of it stay what they are
        started.wait()
        end, begun = time.perf_counter() + seconds, time.thread_time()
        while not done[index] or time.perf_counter() < end and not stop.is_set():
            torch.mm(matrix, matrix, out=results[index])
            done[index] += 1
        computed[index] = time.thread_time() - begun

    results = [torch.empty(256, 256) for _ in range(threads)]
    workers = [threading.Thread(target=multiply, args=(index,)) for index in range(threads)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:   # after a Ctrl-C none goes on while Python ends
        stop.set()
        if any(worker.ident is None for worker in workers):
            started.abort()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
        torch.set_num_threads(before)
    return sum(done), sum(computed)
