"""Devices as threads of one process: every device's worker has a job of the same step."""

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fewgpu.device import Device, Job
from fewgpu.schedule import Message
from fewgpu.transport.copies import Parcel
from fewgpu.transport.mailbox import Mailbox

# Two callers at once must hand in all jobs of one step before any of the other: a worker runs its
# jobs in order, and workers with different orders would wait for each other.
_handing_in = threading.Lock()
_thread = threading.local()   # .devices: those of the steps that this worker is inside of


def refuse_devices_around(devices: Iterable[Device]) -> None:
    """Raises RuntimeError if a pipeline in a pipeline asks for a device that works for the outer
    one: the outer job would wait for the inner, queued behind it."""
    if getattr(_thread, 'devices', frozenset()) & set(devices):
        raise RuntimeError('a pipeline inside a pipeline needs devices of its own: give it other '
                           'Device objects (they may be on the same GPU)')


def call_devices(mailbox: Mailbox, devices: Sequence[Device], jobs: Sequence[Job],
                 feed: Mapping[Message, Any], collect: Iterable[Message]) -> list[Any]:
    """Let `devices[d]` do `jobs[d]`, feed the mailbox, and wait until all are done.

    Returns the values of the messages to `collect`, in order. The first error of any device is
    raised here, when all have stopped.

    Raises RuntimeError as `refuse_devices_around` does.
    """
    refuse_devices_around(devices)
    inside = getattr(_thread, 'devices', frozenset()) | set(devices)
    handed_in = [_Once(partial(_inside, inside, job)) for job in jobs]
    for message, value in feed.items():
        mailbox.send(message, Parcel.of(value))
    try:
        with _handing_in:
            for device, job in zip(devices, handed_in):
                device.submit(job)
        mailbox.join()
    except BaseException as error:   # Ctrl-C, say: let the workers stop at their next operation
        mailbox.abort(error)
        _settle(mailbox, handed_in)
    mailbox.raise_first_error()
    return [mailbox.take(message).value for message in collect]


class _Once:
    """A job that a worker runs, or that was cancelled before: never both."""

    def __init__(self, job: Job) -> None:
        self._job, self._taken, self._cancelled = job, threading.Lock(), False

    def __call__(self) -> None:
        if self._taken.acquire(blocking=False):
            self._job()

    def cancel(self) -> bool:
        """True if it will not run."""
        if self._taken.acquire(blocking=False):
            self._cancelled = True
        return self._cancelled


def _settle(mailbox: Mailbox, jobs: Sequence[_Once]) -> None:
    """Wait until no job runs. A second Ctrl-C does not leave while a worker is inside an operation:
    its layers hold the shadows of their parameters, which others would take for the parameters."""
    while True:
        try:
            for index, job in enumerate(jobs):
                if job.cancel():   # nobody is to wait for those that no worker has begun
                    mailbox.done(index)
            return mailbox.join()
        except KeyboardInterrupt:
            print(f'Stopping, as soon as {mailbox.still_running()} is through.', file=sys.stderr)


def _inside(devices: frozenset[Device], job: Job) -> None:
    _thread.devices = devices
    try:
        job()
    finally:
        del _thread.devices
