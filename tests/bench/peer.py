"""torch.distributed.pipelining: one stage of it, in a process of its own (see tests.bench.rank)."""

import time
from collections import OrderedDict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

from fewgpu.malloc import keep_freed_memory
from tests.bench.work import CHECKPOINTS, Work


class Peer:
    """Stage `rank` of a GPipe schedule, with and without recompute. The layers and the cut are
    those of all contestants; the stage is built by hand, no graph is captured."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        work: Work = torch.load(folder / 'work.pt', weights_only=False)   # the benchmark's own file
        first = sum(work.balance[:rank])
        layers = list(work.model.named_children())[first:first + work.balance[rank]]
        self._stage = nn.Sequential(OrderedDict(layers))
        self._recomputing = Recomputing(self._stage, work.chunks)
        store = dist.FileStore(str(folder / 'rendezvous'), world_size)   # no port is needed
        dist.init_process_group('gloo', rank=rank, world_size=world_size, store=store,
                                timeout=timedelta(hours=1))
        # work.loss_part is one micro-batch's share already, so nothing is left to scale.
        self._schedules = {
            mode: ScheduleGPipe(PipelineStage(module, rank, world_size, torch.device('cpu')),
                                work.chunks, loss_fn=work.loss_part, scale_grads=False)
            for mode, module in zip(CHECKPOINTS, (self._stage, self._recomputing))}
        self._inputs = [work.inputs] if rank == 0 else []
        self._targets = {'target': work.targets} if rank == world_size - 1 else {}
        self._gradients = folder / f'gradients-{rank}.pt'

    def step(self, checkpoint: str) -> dict:
        """Forward, loss, backward. All processes of a machine read the same clock."""
        self._recomputing.forwards = 0
        start = time.perf_counter()
        self._schedules[checkpoint].step(*self._inputs, **self._targets, return_outputs=False)
        return {'start': start, 'end': time.perf_counter(), 'threads': torch.get_num_threads()}

    def save_gradients(self) -> dict:
        """Of the stage, to a file of the folder."""
        torch.save({name: parameter.grad for name, parameter in self._stage.named_parameters()},
                   self._gradients)
        return {'file': str(self._gradients)}

    def forget(self) -> dict:
        """Drop the gradients."""
        self._stage.zero_grad(set_to_none=True)
        return {}


class Recomputing(nn.Module):
    """Recompute as a user of the peer would add it: torch's checkpoint round the stage, and not for
    the last micro-batch, as in GPipe's 'except_last'. The layers draw no random numbers, so no
    generator has to be saved, and nothing is compared: the peer at its fastest."""

    def __init__(self, layers: nn.Module, chunks: int) -> None:
        super().__init__()
        self.layers, self.chunks, self.forwards = layers, chunks, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        if self.forwards >= self.chunks:
            return self.layers(inputs)
        return checkpoint(self.layers, inputs, use_reentrant=False, preserve_rng_state=False,
                          determinism_check='none')
