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
    for message, value in feed.items():
        mailbox.send(message, Parcel.of(value))
    try:
        with _handing_in:
            _hand_in(mailbox, devices, [partial(_inside, inside, job) for job in jobs])
        mailbox.join()
    except BaseException as error:   # Ctrl-C, say: let the workers stop at their next operation
        mailbox.abort(error)
        _join_whatever_comes(mailbox)
    mailbox.raise_first_error()
    return [mailbox.take(message).value for message in collect]


def _hand_in(mailbox: Mailbox, devices: Sequence[Device], jobs: Sequence[Job]) -> None:
    handed_in = 0
    try:
        for device, job in zip(devices, jobs):
            device.submit(job)
            handed_in += 1
    except BaseException as error:
        mailbox.abort(error)
        for index in range(handed_in, len(jobs)):   # nobody is to wait for those without a job
            mailbox.done(index)
        raise


def _join_whatever_comes(mailbox: Mailbox) -> None:
    """A second Ctrl-C does not leave while a worker is inside an operation: its layers hold the
    shadows of their parameters, which the next step would take for the parameters."""
    while True:
        try:
            return mailbox.join()
        except KeyboardInterrupt:
            print(f'Stopping, as soon as {mailbox.still_running()} is through.', file=sys.stderr)


def _inside(devices: frozenset[Device], job: Job) -> None:
    _thread.devices = devices
    try:
        job()
    finally:
        del _thread.devices
