"""The work that every system does, and what it reports of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu.data import load, subset
from fewgpu.device import Device, get_devices
from fewgpu.models import build

Batch = tuple[torch.Tensor, torch.Tensor]
NORM_BATCHES = 4   # of which batch norms' statistics are taken before a test
WARM_UP = 2   # mini-batches in which memory is counted, and whose speed is not


@dataclass(frozen=True)
class Work:
    """A model, its mini-batches, and the devices it may use (`pace` where they outnumber the cores)."""

    arch: str
    devices: int
    balance: tuple[int, ...]
    batch: int
    chunks: int
    samples: int
    test_samples: int
    seed: int = 0
    pace: float | None = None

    def model(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        return build(self.arch)

    @cached_property
    def batches(self) -> list[Batch]:
        """In order; the last rows that do not fill a mini-batch are left out."""
        x, y = subset(load('train'), self.samples, self.seed).tensors
        return [*zip(x.split(self.batch), y.split(self.batch))][:self.samples // self.batch]

    def places(self, count: int | None = None, first: int = 0) -> list[Device]:
        """Devices of this work: GPUs where there are any, else virtual ones of one core each. They count their
        memory from now on (which slows them down a little)."""
        count = self.devices if count is None else count
        devices = get_devices(first + count, kind='cpu' if self.pace else None, pace=self.pace)[first:]
        for device in devices:
            device.meter()
        return devices

    def accuracy(self, state: dict[str, Any]) -> float:
        """Of the plain model with these weights, on the test images.

        Running statistics of batch norm lag behind weights that were updated a dozen times only, and systems
        update them differently. So for everyone they are taken anew, over training images.
        """
        model = self.model()
        model.load_state_dict(state)
        settle_norms(model, [x for x, _ in self.batches[:NORM_BATCHES]])
        model.eval()
        x, y = subset(load('test'), self.test_samples, self.seed).tensors
        with torch.no_grad():
            right = [(model(part).argmax(-1) == wanted).sum() for part, wanted in zip(x.split(64), y.split(64))]
        return int(sum(right)) / len(y)


def settle_norms(model: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Batch norms' running statistics become the mean over `inputs`, by the weights as they are."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.reset_running_stats()
            layer.momentum = None   # to torch: the plain mean over all that was seen
    model.train()
    with torch.no_grad():
        for x in inputs:
            model(x)


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


@dataclass
class Outcome:
    """What a system did."""

    samples_per_second: float
    busy: list[float]                    #: share of the time that each device computed
    peak: list[int]                      #: most bytes that lived on each device
    staleness: int                       #: updates between a gradient's weights and its use, at most
    loss: float                          #: of the last mini-batch
    accuracy: float = 0.0
    state: dict[str, Any] = field(default_factory=dict, repr=False)


loss_fn = cross_entropy


def peaks(devices: Sequence[Device]) -> list[int]:
    """Most bytes of each device since `reset_peaks`."""
    return [device.ledger.peak if device.ledger else torch.cuda.max_memory_allocated(device.torch)
            for device in devices]


def reset_peaks(devices: Sequence[Device]) -> None:
    for device in devices:
        if device.ledger:
            device.ledger.reset_peak()
        elif not device.is_virtual:
            torch.cuda.reset_peak_memory_stats(device.torch)
