"""Peak memory of all devices together, counted tensor by tensor, in steps that nobody times.

torchgpipe's CPU backward runs in the caller's thread, whichever partition it is for, so its memory
cannot be told apart by device: totals are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fewgpu.ledger import Counting, Ledger
from tests.bench.contestants import Fewgpu, Plain, Torchgpipe
from tests.bench.work import CHECKPOINTS, Work


@dataclass(frozen=True)
class Peak:
    """Most bytes alive at once, parameters and buffers included, and what those alone take."""

    engine: str
    checkpoint: str
    peak: int
    parameters: int


def peaks(work: Work, steps: int = 2) -> list[Peak]:
    """Of fewgpu and torchgpipe, each without and with recompute, and of the plain model.

    When two devices peak is left to chance; the largest of a few steps counts.
    """
    contestants = [Plain(work), *(kind(work, mode) for kind in (Fewgpu, Torchgpipe)
                                  for mode in CHECKPOINTS)]
    return [_peak(contestant, steps) for contestant in contestants]


def _peak(contestant: Plain | Fewgpu | Torchgpipe, steps: int) -> Peak:
    model, ledger = contestant.work.model, Ledger('all devices')
    ledger.adopt([*model.parameters(), *model.buffers()], parameters=True)
    if isinstance(contestant, Fewgpu):
        for device in contestant.devices:
            device.ledger = ledger
    elif isinstance(contestant, Torchgpipe):
        for partition in contestant.model.partitions:
            partition.forward = _counted(partition.forward, ledger)
    for _ in range(steps):
        with Counting(ledger):   # the caller's thread: loss, and torchgpipe's backward
            contestant.train()
        contestant.forget()
    return Peak(contestant.engine, contestant.checkpoint, ledger.peak, ledger.parameters)


def _counted(forward: Callable, ledger: Ledger) -> Callable:
    """The forward of a partition, wherever it runs: torchgpipe makes threads in every step."""
    def run(inputs):
        with Counting(ledger):
            return forward(inputs)
    return run
