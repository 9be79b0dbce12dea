"""How messages travel between devices, and who waits for them."""

from fewgpu.transport.copies import copy_to
from fewgpu.transport.mailbox import Deadlock, Mailbox, Stopped
from fewgpu.transport.threads import call_devices

__all__ = ['Deadlock', 'Mailbox', 'Stopped', 'call_devices', 'copy_to']
