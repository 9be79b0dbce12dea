"""How messages travel between devices, and who waits for them."""

from fewgpu.transport.copies import Parcel
from fewgpu.transport.mailbox import Deadlock, Mailbox, Stopped
from fewgpu.transport.threads import call_devices, refuse_devices_around

__all__ = ['Deadlock', 'Mailbox', 'Parcel', 'Stopped', 'call_devices',
           'refuse_devices_around']
