"""What the operations of a pipeline cost when each has the machine to itself."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from fewgpu.context import Context
from fewgpu.device import get_devices
from fewgpu.gpipe import GPipe
from fewgpu.schedule import Op, gpipe, with_recompute
from fewgpu.simulate import Costs, simulate
from fewgpu.stage import Stage
from fewgpu.trace import Timeline
from tests.bench.contestants import InProcess
from tests.bench.work import Work


class Alone(InProcess):
    """The operations of fewgpu's schedule, one after the other: what each costs on a machine where
    nothing else runs. As in the pipeline, all micro-batches are stashed before the backward."""

    engine = 'one stage at a time'

    def __init__(self, work: Work, checkpoint: str) -> None:
        super().__init__(work, checkpoint)
        self.schedule = with_recompute(gpipe(len(work.balance), work.chunks), checkpoint)
        devices = get_devices(len(work.balance), kind='cpu')
        model = GPipe(work.model, work.balance, devices=devices)
        self._stages = [Stage(j, *pair) for j, pair in enumerate(zip(model.partitions, devices))]
        self._seconds: dict[tuple[int, str], list[float]] = {}

    def cost(self, op: Op) -> float:
        """Median seconds of such an operation of its stage in the latest step."""
        return statistics.median(self._seconds[op.stage, op.kind])

    def simulated(self) -> Timeline:
        """The schedule in virtual time, if operations cost what they did and messages nothing."""
        costs = {kind: [0.0] * self.schedule.stages for kind in 'FRB'}
        for op in self.schedule:
            costs[op.kind][op.stage] = self.cost(op)
        return simulate(self.schedule, Costs(**costs))

    def costs(self) -> dict[str, float]:
        """Those medians, by operation and stage: 'F of stage 0', ..."""
        return {f'{kind} of stage {stage}': statistics.median(values)
                for (stage, kind), values in sorted(self._seconds.items())}

    def train(self) -> None:
        work, self._seconds = self.work, {}
        context = Context.capture([])
        steps = [stage.begin(context, work.chunks) for stage in self._stages]
        values = list(work.inputs.chunk(work.chunks))
        for j, step in enumerate(steps):
            values = [self._time(j, 'F', step.forward, i, value, self.schedule.keeps(j, i))
                      for i, value in enumerate(values)]
        gradients = [self._loss_gradient(*pair)
                     for pair in zip(values, work.targets.chunk(work.chunks))]
        del values
        for j, step in reversed(list(enumerate(steps))):
            for op in self.schedule.rows[j][work.chunks:]:
                i = op.micro_batch
                if op.kind == 'R':
                    self._time(j, 'R', step.recompute, i)
                else:
                    gradients[i] = self._time(j, 'B', step.backward, i, gradients[i])
            for parameter, gradient in step.take_gradients().items():
                parameter.grad = gradient

    def _time(self, stage: int, kind: str, do: Callable, *arguments: Any) -> Any:
        start = time.perf_counter()
        value = do(*arguments)
        self._seconds.setdefault((stage, kind), []).append(time.perf_counter() - start)
        return value

    def _loss_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        outputs = outputs.detach().requires_grad_()
        return list(torch.autograd.grad(self.work.loss_part(outputs, targets), outputs))
