"""ZeRO-Infinity: parameters and optimizer states in the host's memory or on disk (arXiv 2104.07857).

Read `offloaded` (the model), `visits` (one step), `unit` (one layer), `store` (where state lives), `versions`
(whole steps, whatever happens) and `shares` (a slice a rank).
"""

from fewgpu.offload.offloaded import Offloaded
from fewgpu.offload.store import DiskStore, HostStore, StoreError

__all__ = ['DiskStore', 'HostStore', 'Offloaded', 'StoreError']
