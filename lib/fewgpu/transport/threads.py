"""Devices as threads of one process: every device's worker has a job of the same step."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fewgpu.device import Device, Job
from fewgpu.schedule import Message
from fewgpu.transport.mailbox import Mailbox

# Two callers at once must hand in all jobs of one step before any of the other: a worker runs its
# jobs in order, and workers with different orders would wait for each other.
_handing_in = threading.Lock()
_thread = threading.local()   # .devices: those of the steps that this worker is inside of


def call_devices(mailbox: Mailbox, devices: Sequence[Device], jobs: Sequence[Job],
                 feed: Mapping[Message, Any], collect: Iterable[Message]) -> list[Any]:
    """Let `devices[d]` do `jobs[d]`, feed the mailbox, and wait until all are done.

    Returns the values of the messages to `collect`, in order. The first error of any device is
    raised here, when all have stopped.

    Raises RuntimeError if a pipeline in a pipeline asks for a device that works for the outer one:
    the outer job would wait for the inner, queued behind it.
    """
    around = getattr(_thread, 'devices', frozenset())
    if around & set(devices):
        raise RuntimeError('a pipeline inside a pipeline needs devices of its own: give it other '
                           'Device objects (they may be on the same GPU)')
    for message, value in feed.items():
        mailbox.send(message, value)
    with _handing_in:
        for device, job in zip(devices, jobs):
            device.submit(partial(_inside, around | set(devices), job))
    try:
        mailbox.join()
    except KeyboardInterrupt as error:   # let the workers stop at their next operation
        mailbox.abort(error)
        mailbox.join()
    return [mailbox.take(message) for message in collect]


def _inside(devices: frozenset[Device], job: Job) -> None:
    _thread.devices = devices
    try:
        job()
    finally:
        del _thread.devices
