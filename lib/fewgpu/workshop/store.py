"""Where the nodes of a job find each other: a store on the first node, whose address the others read in a file.

No port is chosen beforehand, for another job may have it: the first node listens on one that is free, and writes

    10.0.3.17 40117

into the job's folder, which all nodes see. It listens on the address by which Slurm knows the node, and on no other:
whoever reaches the store can write in it, so it is not offered to networks that do not need it.
"""

import os
import re
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

_LOOK = 0.1   # seconds between two looks for the file
_ALONE = '127.0.0.1'
_SIOCGIFADDR = 0x8915   # Linux: the IPv4 address of an interface


class NoStore(RuntimeError):
    """The nodes cannot find each other."""


def address_here() -> str:
    """This node's address, in numbers: by Slurm's word, or 127.0.0.1 outside of a job.

    Raises NoStore, with what was tried, if Slurm does not know the node, or its name has no address.
    """
    node = os.environ.get('SLURMD_NODENAME')
    if not node:
        return _ALONE
    command = ['scontrol', 'show', 'node', node]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoStore(f'{" ".join(command)} does not work on this node ({error}), so its address is unknown') from None
    found = re.search(r'\bNodeAddr=(\S+)', shown.stdout)
    name = found[1] if found else node
    try:
        return socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise NoStore(f'the address of node {node}, which Slurm calls {name}, is unknown here ({error}): ask the '
                      f'people who run the cluster for its NodeAddr') from None


def interface_of(address: str) -> str | None:
    """The network interface with this IPv4 address ('eth0'), or None where that cannot be told (not on Linux)."""
    try:
        import fcntl
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _, name in socket.if_nameindex():
                request = struct.pack('256s', name.encode()[:15])
                try:
                    answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
                except OSError:   # an interface without an address
                    continue
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    except (ImportError, OSError):
        pass
    return None


def open_store(file: Path, address: str) -> 'dist.Store':
    """Listen on a free port of this address, and tell the other nodes in `file`. The store lives in this process.

    Raises NoStore if this machine does not have the address.
    """
    from datetime import timedelta

    import torch.distributed as dist
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
    except OSError as error:
        listener.close()
        raise NoStore(f'the first node cannot listen on {address}, by which Slurm knows it ({error})') from None
    listener.listen(4096)   # connections may all come at once
    port = listener.getsockname()[1]
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=timedelta(days=7),
                          master_listen_fd=listener.detach())   # which the store closes
    unfinished = file.with_name(f'{file.name}.part')
    unfinished.write_text(f'{address} {port}\n', encoding='utf-8')
    os.replace(unfinished, file)
    return store


def find_store(file: Path, time_limit: float) -> 'dist.Store':
    """Wait for the first node's word, and connect.

    Raises NoStore if it does not come within `time_limit` seconds, or nobody answers there.
    """
    from datetime import timedelta

    import torch.distributed as dist
    deadline = time.monotonic() + time_limit
    while file.name not in os.listdir(file.parent):   # a network file system may remember that a file was missing
        if time.monotonic() >= deadline:
            raise NoStore(f'after {time_limit:g} s the first node has not written its address to {file}: either it has '
                          f'not started (its part of the output tells), or this node does not see that folder: put the '
                          f'kit on a file system that all nodes share')
        time.sleep(_LOOK)
    address, port = file.read_text(encoding='utf-8').split()
    try:
        store = dist.TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=time_limit))
    except (dist.DistError, RuntimeError) as error:
        raise NoStore(f'nobody answers at {address}, port {port}, where the first node listens ({error}): a firewall '
                      f'between the nodes, or another network, keeps them apart') from None
    store.set_timeout(timedelta(days=7))
    return store
