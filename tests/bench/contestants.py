"""The contestants that live in the benchmark's own process. All train the same layers."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torchgpipe

from torch.nn.modules.module import register_module_forward_pre_hook

from fewgpu.device import get_devices
from fewgpu.gpipe import GPipe
from tests.bench.work import Gradients, Work


class InProcess:
    """Shares the one model of this process with the others, parameters and all."""

    engine = ''

    def __init__(self, work: Work, checkpoint: str = 'never') -> None:
        self.work, self.checkpoint = work, checkpoint

    def step(self) -> float:
        start = time.perf_counter()
        self.train()
        return time.perf_counter() - start

    def threads(self) -> set[int]:
        """Do a step; with how many intra-op threads the layers ran in it."""
        return intra_op_threads(self.step)

    def train(self) -> None:
        """Forward, loss, backward."""
        raise NotImplementedError

    def gradients(self) -> Gradients:
        return {name: parameter.grad.clone()
                for name, parameter in self.work.model.named_parameters()}

    def forget(self) -> None:
        self.work.model.zero_grad(set_to_none=True)


class Plain(InProcess):
    """The model on one core, micro-batch by micro-batch."""

    engine = 'plain (one core)'

    def train(self) -> None:
        work = self.work
        for inputs, targets in zip(work.inputs.chunk(work.chunks), work.targets.chunk(work.chunks)):
            work.loss_part(work.model(inputs), targets).backward()


class Pipe(InProcess):
    """A GPipe as its users call it: model, loss over the mini-batch, backward."""

    model: Callable[[torch.Tensor], torch.Tensor]

    def train(self) -> None:
        F.cross_entropy(self.model(self.work.inputs), self.work.targets).backward()


class Fewgpu(Pipe):
    """This kit: a worker thread a device."""

    engine = 'fewgpu'

    def __init__(self, work: Work, checkpoint: str) -> None:
        super().__init__(work, checkpoint)
        self.devices = get_devices(len(work.balance), kind='cpu')
        self.model = GPipe(work.model, work.balance, devices=self.devices, chunks=work.chunks,
                           checkpoint=checkpoint)

    def busy(self) -> float:
        """Seconds that the devices computed during the latest step, all together."""
        timeline = self.model.timeline
        return sum(timeline.busy(device) for device in range(len(timeline.rows)))


class Torchgpipe(Pipe):
    """torchgpipe 0.0.7. All its CPU partitions share one worker, and autograd one CPU thread."""

    engine = 'torchgpipe'

    def __init__(self, work: Work, checkpoint: str) -> None:
        super().__init__(work, checkpoint)
        self.model = torchgpipe.GPipe(work.model, work.balance, devices=['cpu'] * len(work.balance),
                                      chunks=work.chunks, checkpoint=checkpoint)


def intra_op_threads(step: Callable[[], Any]) -> set[int]:
    """With how many intra-op threads the layers run during `step`, in whichever thread of this
    process: {1}, if every device is one core."""
    seen: set[int] = set()
    hook = register_module_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    try:
        step()
    finally:
        hook.remove()
    return seen
