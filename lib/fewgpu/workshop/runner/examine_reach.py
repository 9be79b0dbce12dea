"""Who can be reached from here: ranks over the loopback address, the machine's own name, Slurm."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

from fewgpu.workshop import repository
from fewgpu.workshop.machine import cores
from fewgpu.workshop.runner.examine_machine import first_line, reinstall
from fewgpu.workshop.runner.finding import BAD, OK, WARN, Finding, TookTooLong, within

LOOPBACK = '127.0.0.1'


def host_name() -> Iterator[Finding]:
    """gloo, torch's transport between CPUs, looks the machine's own name up."""
    name = socket.gethostname()
    try:
        found = within(3.0, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, TookTooLong) as error:
        yield Finding(WARN, 'host name', f'{name} has no address ({first_line(error)})',
                      f'`launch` does without; for torchrun add "{LOOPBACK} {name}" to /etc/hosts, or export '
                      'GLOO_SOCKET_IFNAME=lo (on macOS lo0).')
    else:
        yield Finding(OK, 'host name', f'{name} is {found[0][4][0]}')


def ports() -> Iterator[Finding]:
    """Can a program listen on 127.0.0.1, and another reach it?"""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            server.settimeout(2.0)
            with socket.create_connection(server.getsockname(), timeout=2.0) as caller, server.accept()[0] as called:
                called.settimeout(2.0)
                caller.sendall(b'F0')
                arrived = called.recv(2)
    except OSError as error:
        arrived = first_line(error)
    if arrived == b'F0':
        yield Finding(OK, 'ports', f'programs of this machine reach each other on {LOOPBACK}')
    else:
        yield Finding(BAD, 'ports', f'programs of this machine do not reach each other on {LOOPBACK}: {arrived!r}',
                      f'A firewall or a sandbox forbids it: let it allow {LOOPBACK}.')


def ranks() -> Iterator[Finding]:
    """Two real ranks add up a tensor."""
    from fewgpu import launch

    started = time.monotonic()
    try:
        sums = launch(_sum_of_ranks, ranks=2, time_limit=30.0)
    except Exception as error:   # whatever it is, this is what a learner would meet
        yield Finding(BAD, 'ranks', f'two ranks do not work together: {type(error).__name__}: {first_line(error)}',
                      'See `ports` and `host name`; under Slurm run the doctor inside a job.')
        return
    seconds = time.monotonic() - started
    if sums == [1.0, 1.0]:
        yield Finding(OK, 'ranks', f'two ranks started and talked to each other within {seconds:.1f} s')
    else:
        yield Finding(BAD, 'ranks', f'two ranks added up 0 and 1, and found {sums}', reinstall())


def _sum_of_ranks() -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(tensor)
    return tensor.item()


def slurm() -> Iterator[Finding]:
    """On a cluster: is this a job, what does it have, and are the kit's jobs set up?"""
    if job := os.environ.get('SLURM_JOB_ID'):
        yield _job(job)
    if not shutil.which('sbatch'):
        if not job:
            yield Finding(OK, 'Slurm', 'none here: the same scripts run as bash jobs/job_gpipe.sh')
        return
    try:
        command = ['sinfo', '-h', '-o', '%R %a %D %G']
        done = subprocess.run(command, capture_output=True, text=True, timeout=4, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        done = subprocess.CompletedProcess(command, 1, '', str(error))
    if done.returncode:
        yield Finding(WARN, 'Slurm', f'does not answer: {first_line(done.stderr)}',
                      'Wait and try again, or ask the people of the cluster.')
        return
    rows = [line.split(None, 3) for line in done.stdout.splitlines()]
    up = [row for row in rows if len(row) == 4 and row[1] == 'up']
    with_gpus = sorted({row[0] for row in up if 'gpu' in row[3]})
    says = f'{len({row[0] for row in up})} partitions that are up, '
    says += f'with GPUs: {", ".join(with_gpus)}' if with_gpus else 'none with GPUs'
    told = (repository() / 'jobs' / 'site.sh').exists() or any(name.startswith('SBATCH_') for name in os.environ)
    if not up:
        yield Finding(WARN, 'Slurm', 'no partition is up', 'sinfo shows them; ask the people of the cluster.')
    elif told:
        yield Finding(OK, 'Slurm', says)
    else:
        yield Finding(WARN, 'Slurm', f'{says}; the kit has not been told which to use',
                      'cp jobs/site.sh.example-gpu-partition jobs/site.sh (or ...-modules), and keep there the lines '
                      'that you need.')


def _job(job: str) -> Finding:
    gpus = os.environ.get('SLURM_GPUS_ON_NODE') or os.environ.get('SLURM_JOB_GPUS', '')
    count = cores()
    says = f'this is job {job}, with {count} {"core" if count == 1 else "cores"} and '
    says += f'GPUs: {gpus}' if gpus else 'no GPU'
    if gpus:
        import torch

        if not torch.cuda.is_available():
            return Finding(WARN, 'Slurm job', f'{says}; torch sees none',
                           'srun may need --gpus again; see what is said about GPUs.')
    if not gpus and count < 2:
        return Finding(WARN, 'Slurm job', says,
                       'Ask for --cpus-per-task=2 or more, or for GPUs: see jobs/site.sh.example-*.')
    return Finding(OK, 'Slurm job', says)
