"""What the faults of ranks share: processes that note when they did what, also those that fail."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.launch import launch
from fewgpu.schedule import Op
from fewgpu.trace import WAITS, Timeline
from fewgpu.workshop.failures import told

Noted = tuple[str, int, int, float, float]   # kind, stage, number, from, to: seconds of time.perf_counter
LIMIT = 120.0   # seconds that such a run may take, however busy the machine is


def on_ranks(fn: Callable[..., Any], ranks: int, *arguments: Any) -> tuple[Timeline, str]:
    """Call `fn(folder, *arguments)` on so many ranks. What they left in the folder, and what the library said."""
    message = ''
    with tempfile.TemporaryDirectory(prefix='fewgpu-') as folder:
        try:
            launch(fn, ranks, args=(folder, *arguments), time_limit=LIMIT)
        except Exception as error:
            message = told(error)
        rows = [_left(Path(folder, f'{rank}.json')) for rank in range(ranks)]
    return Timeline.of(rows, [f'rank {rank}' for rank in range(ranks)]), message


def leave(folder: str, noted: Sequence[Noted]) -> None:
    """Of this rank; a file is there as a whole or not at all."""
    file = Path(folder, f'{dist.get_rank()}.json')
    file.with_suffix('.part').write_text(json.dumps(noted), encoding='utf-8')
    file.with_suffix('.part').rename(file)


def of_pipeline(spans: Sequence[Sequence[tuple]]) -> list[Noted]:
    """What this rank's row of a pipeline did."""
    return [(op.kind, op.stage, op.micro_batch, start, end) for op, start, end, *_ in spans[dist.get_rank()]
            if op.kind not in WAITS]


def _left(file: Path) -> list[tuple[Op, float, float]]:
    noted = json.loads(file.read_text(encoding='utf-8')) if file.exists() else []
    return [(Op(kind, stage, number), start, end) for kind, stage, number, start, end in noted]


class Diary:
    """What a replica does, `with diary.notes('F', step): ...`; left in the folder at the end, whatever the end is.
    Kinds are those of `Op`, and `fewgpu.trace.EXCHANGE`."""

    def __init__(self, folder: str) -> None:
        self._folder, self._noted = folder, []

    @contextlib.contextmanager
    def notes(self, kind: str, step: int) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:   # a wait that ended with an error is to be seen, too
            self._noted.append((kind, dist.get_rank(), step, start, time.perf_counter()))

    def __enter__(self) -> 'Diary':
        return self

    def __exit__(self, *_: Any) -> None:
        leave(self._folder, self._noted)


@torch.no_grad()
def descend(model: nn.Module) -> None:
    """A step of gradient descent by hand: torch's optimizers take seconds to be imported."""
    for parameter in model.parameters():
        parameter -= 0.01 * parameter.grad
        parameter.grad = None


def replica() -> tuple[nn.Sequential, torch.Tensor]:
    """A model, the same on all ranks, and rows of this rank's own."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.Tanh())))
    return model, torch.randn(256, 512, generator=torch.Generator().manual_seed(1 + dist.get_rank()))
