"""Python, torch, GPUs, cores, memory and disk: what the machine has for the kit."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from fewgpu.workshop import machine, repository
from fewgpu.workshop.runner.finding import BAD, OK, WARN, Finding

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 11)
GB = 1e9
ENOUGH_MEMORY, LEAST_MEMORY = 2.5 * GB, 0.7 * GB   # for ResNet-50 with batch 64; for Python, torch and a small exercise
ENOUGH_DISK, LEAST_DISK = 1.0 * GB, 0.1 * GB
ENOUGH_SHARED = 0.25 * GB
GOOD_EFFICIENCY = 0.75
CGROUP = Path('/sys/fs/cgroup')


def python() -> Iterator[Finding]:
    """Its version, and which one it is."""
    says = f'{platform.python_version()}, {sys.executable}'
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield Finding(BAD, 'Python', says, 'The kit needs Python 3.11 or newer: python3.12 workshop.py doctor')
    elif sys.maxsize < 2**32:
        yield Finding(BAD, 'Python', f'{says}, with 32 bits', 'Install a Python with 64 bits: torch needs it.')
    else:
        yield Finding(OK, 'Python', says)


def torch_itself() -> Iterator[Finding]:
    """Can it be imported, is it new enough, and does it compute gradients?"""
    try:
        import torch
    except (ImportError, OSError) as error:   # OSError: a library that it needs is missing, or is of another system
        return (yield Finding(BAD, 'torch', f'cannot be imported: {first_line(error)}', reinstall()))
    build = f'CUDA {torch.version.cuda}' if torch.version.cuda else 'a build without CUDA'
    says = f'{torch.__version__}, {build}'
    if tuple(int(part) for part in torch.__version__.split('.')[:2]) < OLDEST_TORCH:
        return (yield Finding(BAD, 'torch', says, f'The kit needs torch 2.11 or newer. {reinstall()}'))
    x = torch.ones(3, requires_grad=True)
    (x @ x).backward()
    right = x.grad is not None and x.grad.tolist() == [2.0, 2.0, 2.0]
    if right:
        yield Finding(OK, 'torch', says)
    else:
        yield Finding(BAD, 'torch', f'{says}, computes wrong gradients', reinstall())


def gpus() -> Iterator[Finding]:
    """Those that torch can use, each tried; or why it sees none."""
    import torch

    with warnings.catch_warnings(record=True) as said:   # torch says there why it cannot use a GPU
        warnings.simplefilter('always')
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        yield _no_gpu(torch.version.cuda, '; '.join(first_line(each.message) for each in said))
    for index in range(count):
        yield _gpu(index)


def _no_gpu(cuda: str | None, reason: str) -> Finding:
    listed = nvidia_smi()
    if not listed:
        return Finding(OK, 'GPUs', 'none: every core plays a device, with its own memory (a virtual device)')
    says = f'nvidia-smi lists {len(listed)}, and torch sees none'
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if cuda is None:
        return Finding(WARN, 'GPUs', f'{says}: this torch is a build without CUDA', reinstall())
    if visible is not None:
        says += f': CUDA_VISIBLE_DEVICES={visible!r} hides them'
        return Finding(WARN, 'GPUs', says, 'unset CUDA_VISIBLE_DEVICES')
    return Finding(WARN, 'GPUs', f'{says}: {reason or "CUDA is not available"}',
                   f'The driver has to know CUDA {cuda}: ask for a newer one, or install a torch for an older CUDA '
                   '(pytorch.org, "previous versions"). Virtual devices work meanwhile.')


def _gpu(index: int) -> Finding:
    import torch

    subject = f'GPU {index}'
    name = torch.cuda.get_device_name(index)
    try:
        matrix = torch.full((256, 256), 1 / 256, device=f'cuda:{index}')
        right = bool(torch.allclose(matrix @ matrix, matrix))
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        return Finding(BAD, subject, f'{name}: {first_line(error)}',
                       'Another program may hold it (nvidia-smi shows which), or this torch is not built for it. '
                       'CUDA_VISIBLE_DEVICES= in the environment makes the kit do without.')
    says = f'{name}, {free / GB:.0f} of {total / GB:.0f} GB free'
    if not right:
        return Finding(BAD, subject, f'{says}, but it multiplies wrongly', 'Take another GPU, and report this one.')
    if free < total / 2:
        return Finding(WARN, subject, f'{says}: others use it',
                       'nvidia-smi shows who; speeds measured now are not yours.')
    return Finding(OK, subject, says)


def nvidia_smi() -> list[str]:
    """The GPUs that the driver lists, whatever torch can do with them."""
    try:
        done = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line.startswith('GPU ')] if done.returncode == 0 else []


def cores() -> Iterator[Finding]:
    """How many this process may use, and whether others keep them busy."""
    mine, all_of_them = machine.cores(), os.cpu_count() or 1
    says = str(mine)
    if mine < all_of_them:
        says += f' of the {all_of_them} of this machine (its batch job or container has no more)'
    if mine < 2:
        yield Finding(WARN, 'cores', f'{says}: a pipeline of virtual devices is not faster than one device',
                      'On a cluster ask for --cpus-per-task=2 or more; on a JupyterHub choose a larger server.')
        return
    load = os.getloadavg()[0] if hasattr(os, 'getloadavg') else 0.0
    if load > 0.75 * all_of_them:
        yield Finding(WARN, 'cores', f'{says}; on average {load:.1f} are busy (load)',
                      'Close other programs before you measure speed.')
    else:
        yield Finding(OK, 'cores', says)


def efficiency() -> Iterator[Finding]:
    """What a second core adds: no pipeline of virtual devices is faster than that."""
    if machine.cores() < 2:
        return
    share = machine.two_core_efficiency(seconds=1.2)
    says = f'do {2 * share:.2f} times the work of one'
    if share >= GOOD_EFFICIENCY:
        yield Finding(OK, 'two cores', says)
    else:
        yield Finding(WARN, 'two cores', f'{says}: expect no better from two virtual devices',
                      'Close other programs, plug the laptop in; under Slurm ask for --hint=nomultithread.')


def memory() -> Iterator[Finding]:
    """What is free of the machine's, or of what its container may use."""
    free, total = _memory()
    if total is None:
        return
    says = f'{free / GB:.1f} GB free of {total / GB:.1f} GB'
    if free >= ENOUGH_MEMORY:
        yield Finding(OK, 'memory', says)
    else:
        yield Finding(BAD if free < LEAST_MEMORY else WARN, 'memory', says,
                      'Close other programs. ResNet-50 with batch 64 takes about 2 GB: take --batchsize 16 or '
                      '--arch resnet18.')
    shared = Path('/dev/shm')
    if shared.is_dir() and (room := shutil.disk_usage(shared).free) < ENOUGH_SHARED:
        yield Finding(WARN, 'shared mem.', f'{room / 1e6:.0f} MB free in /dev/shm',
                      'Leave --num_workers_dataloader at 0; a container can be given more by --shm-size.')


def _memory() -> tuple[float, float | None]:
    """Bytes that are free, and bytes that there are; None where the system does not tell."""
    try:
        pages = {name: os.sysconf(name) * os.sysconf('SC_PAGE_SIZE') for name in ('SC_PHYS_PAGES', 'SC_AVPHYS_PAGES')
                 if name in os.sysconf_names}
    except (AttributeError, OSError, ValueError):   # Windows
        return 0.0, None
    total = pages.get('SC_PHYS_PAGES')
    free = pages.get('SC_AVPHYS_PAGES', total)      # macOS does not count what is free
    try:   # what is cached can be given up: Linux counts that as available
        free = _number(Path('/proc/meminfo'), 'MemAvailable:') * 1024
        limit, used = (int((CGROUP / f'memory.{name}').read_text()) for name in ('max', 'current'))
        used -= _number(CGROUP / 'memory.stat', 'inactive_file')   # bytes there
        free, total = min(free, max(limit - used, 0)), min(total, limit)
    except (OSError, ValueError, StopIteration):    # not Linux, or no limit
        pass
    return free, total


def _number(file: Path, name: str) -> int:
    """The number beside a name; the file says in what unit."""
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name))


def disk() -> Iterator[Finding]:
    """Can the kit write where it has to, and is there room?"""
    root = repository()
    for folder in (root, root / 'exercises'):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b'\0' * 2**16)
        except OSError as error:
            yield Finding(BAD, 'disk', f'{folder} cannot be written to ({error.strerror})',
                          'Copy the kit to a folder of your own; if the disk or your quota is full, free some room.')
            return
    free = shutil.disk_usage(root).free
    says = f'{free / GB:.1f} GB free in {root}'
    if free >= ENOUGH_DISK:
        yield Finding(OK, 'disk', says)
    else:
        yield Finding(BAD if free < LEAST_DISK else WARN, 'disk', says,
                      'Free some room: pictures and reports go to results/.')


def first_line(error: object) -> str:
    return str(error).strip().partition('\n')[0] or type(error).__name__


def reinstall() -> str:
    return (f'{sys.executable} -m pip install --force-reinstall torch   (without a GPU add: '
            '--index-url https://download.pytorch.org/whl/cpu)')
