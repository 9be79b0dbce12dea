"""Naive model parallelism: the layers are on several devices, and one device works at a time.

It is a pipeline with one micro-batch: stage 1 starts when stage 0 has finished the whole
mini-batch. It holds what does not fit one device, and is no faster than one device.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from fewgpu.gpipe import GPipe


class ModelParallel(GPipe):
    """An nn.Sequential over several devices, without micro-batches or recompute.

    Arguments and errors are those of `GPipe`.
    """

    def __init__(self, module: nn.Sequential, balance: Iterable[int], *,
                 devices: Iterable[Any] | None = None, skips: str = 'straight') -> None:
        super().__init__(module, balance, devices=devices, chunks=1, checkpoint='never', skips=skips)
