"""The link of a virtual device: how long messages take to reach it, though nothing travels."""

import time
from typing import Any

import torch
from torch.utils import _pytree as pytree


class Link:
    """Latency (seconds) and bandwidth (bytes a second) from each other device to this one.

    Messages from one device pass one after the other; those from different devices do not hold each
    other up. A transfer goes on while both ends compute, and uses no core.

    Raises ValueError if the latency is negative or the bandwidth not above 0.
    """

    def __init__(self, latency: float = 0.0, bandwidth: float = float('inf')) -> None:
        if latency < 0.0 or not bandwidth > 0.0:
            raise ValueError(f'a link has a latency of at least 0 s and a bandwidth above 0 bytes/s, '
                             f'not {latency} and {bandwidth}')
        self.latency, self.bandwidth = latency, bandwidth
        self._free: dict[int, float] = {}   # device -> when its next message may start

    def arrival(self, size: int, sent: float, device: int) -> float:
        """When a message of `size` bytes from that device, `sent` at that time, arrives."""
        start = max(sent, self._free.get(device, 0.0))
        self._free[device] = start + size / self.bandwidth
        return self._free[device] + self.latency

    def wait(self, value: Any, sent: float, device: int) -> float:
        """Until a message has arrived; when that is. Times are those of time.perf_counter."""
        arrival = self.arrival(bytes_in(value), sent, device)
        time.sleep(max(0.0, arrival - time.perf_counter()))
        return arrival


def bytes_in(value: Any) -> int:
    """Bytes of all tensors in a nesting."""
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(value)
               if isinstance(leaf, torch.Tensor))
