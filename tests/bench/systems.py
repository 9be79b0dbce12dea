"""`python -m tests.bench systems`: ZeRO 1, 2, 3 against torch's counterparts.

Every rank holds a replica (or its shard) for every contestant. A round measures a few steps of each,
forward to update, one contestant after the other, so that a slow minute slows all alike; a step takes
as long as its slowest rank. One intra-op thread a rank. Beside the seconds stands the processor time of
a rank, which other work on the machine disturbs less.
"""

import copy
import gc
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from fewgpu.data import load
from fewgpu.data_parallel import DataParallel
from fewgpu.launch import launch
from fewgpu.malloc import keep_freed_memory
from fewgpu.models import build
from fewgpu.models.gpt import gpt, next_token_loss
from fewgpu.workshop.machine import describe
from fewgpu.zero import ZeRO
from tests.bench.on_ranks import Options, Taken, measured, show, slowest
from tests.bench.ratios import Ratio
from tests.bench.stats import Summary, paired_ratios
from tests.bench.work import Failed

ZERO = {stage: f'fewgpu ZeRO {stage}' for stage in (1, 2, 3)}
OURS, DDP = 'fewgpu DataParallel', 'torch DDP'
REDUNDANCY = 'torch DDP + ZeroRedundancyOptimizer'
FSDP, KEPT = 'torch FSDP2', 'torch FSDP2, kept after the forward'
PAIRS = ((ZERO[1], REDUNDANCY, 0.9), (ZERO[2], KEPT, 0.9), (ZERO[3], FSDP, 0.9), (OURS, DDP, 0.9),
         (ZERO[1], OURS, None), (ZERO[2], OURS, None), (ZERO[3], OURS, None))
TOLERANCE = 1e-3   # of losses after a few steps, in float32
Step = Callable[[], float]


def run(options: Options) -> dict:
    """Measure, print and write the results. Raises Failed if contestants disagree."""
    ranks = launch(_measure, options.ranks, args=(options,))
    found = {'options': asdict(options), 'machine': describe(), 'rounds': slowest([rank['rounds'] for rank in ranks]),
             'peaks': [rank['peaks'] for rank in ranks], 'parameters': ranks[0]['parameters']}
    return show(found, ratios(found), [table_of(found)], 'bench_systems.json')


def _measure(options: Options) -> dict:
    """In every rank: peak bytes of every contestant, then seconds a step, round by round."""
    keep_freed_memory()
    warnings.filterwarnings('ignore', '.*broadcast_buffers')   # what replaces it is not in torch 2.11
    makers = _makers(options)
    peaks = {name: _peak(make) for name, make in makers.items()}
    steps = {name: make() for name, make in makers.items()}
    _agree(steps)

    def take() -> Taken:
        both = {name: _taken(step, options.steps) for name, step in steps.items()}
        return {what: {name: each[k] for name, each in both.items()} for k, what in enumerate(('seconds', 'processor'))}

    return {'rounds': measured(options, take), 'peaks': peaks,
            'parameters': sum(p.numel() for p in _network(options).parameters())}


def _network(options: Options) -> nn.Sequential:
    torch.manual_seed(options.seed)
    return gpt(6, 192) if options.arch == 'gpt' else build(options.arch)


def _makers(options: Options) -> dict[str, Callable[[], Step]]:
    """What makes each contestant, with a replica of its own, on the rows of this rank."""
    plain, rank = _network(options), dist.get_rank()
    if options.arch == 'gpt':
        numbers = torch.Generator().manual_seed(rank)
        inputs = targets = torch.randint(256, (options.batch, 64), generator=numbers)
        loss_fn: Callable = next_token_loss
    else:
        first = options.batch * rank
        inputs, targets = (t.clone() for t in load('train')[first:first + options.batch])
        loss_fn = F.cross_entropy

    def contestant(wrap: Callable[[nn.Module], tuple[nn.Module, Any]]) -> Callable[[], Step]:
        def make() -> Step:
            model, optimizer = wrap(copy.deepcopy(plain))

            def step() -> float:
                loss = loss_fn(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.item()
            return step
        return make

    return {**{ZERO[stage]: contestant(lambda m, stage=stage: _zero(m, stage)) for stage in ZERO},
            OURS: contestant(lambda m: _with_adam(DataParallel(m))),
            DDP: contestant(lambda m: _with_adam(DistributedDataParallel(m, broadcast_buffers=False))),
            REDUNDANCY: contestant(_redundancy), KEPT: contestant(lambda m: _fsdp(m, False)),
            FSDP: contestant(lambda m: _fsdp(m, True))}


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def _with_adam(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, _adam(model.parameters())


def _zero(module: nn.Module, stage: int) -> tuple[nn.Module, nn.Module]:
    model = ZeRO(module, stage=stage, optimizer=_adam)
    return model, model


def _redundancy(module: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = DistributedDataParallel(module, broadcast_buffers=False)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4)


def _fsdp(module: nn.Module, reshard: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = init_device_mesh('cpu', (dist.get_world_size(),))
    for layer in module.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return _with_adam(fully_shard(module, mesh=mesh, reshard_after_forward=reshard))


def _agree(steps: dict[str, Step]) -> None:
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    reference = torch.tensor(losses[OURS])
    for name, found in losses.items():
        error = float(((torch.tensor(found) - reference) / reference).abs().max())
        if not error <= TOLERANCE:
            raise Failed(f"{name} computes something else: its losses {found} are off by {error:.2g} "
                         f"(relative) from {OURS}'s, so its speed means nothing")


def _taken(step: Step, steps: int) -> tuple[float, float]:
    """Seconds and processor seconds of a step, on average."""
    gc.collect()
    dist.barrier()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps, (time.process_time() - busy) / steps


class Storages(TorchDispatchMode):
    """Most bytes alive at once since `peak` was set to 0, as of what this thread's operations made.

    Unlike a ledger it looks at the size of every storage after every operation: FSDP2 frees gathered
    parameters by making their storages small.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and value.device.type != 'meta':
                storage = (value._local_tensor if isinstance(value, DTensor) else value).untyped_storage()
                self._live[storage._cdata] = weakref.ref(storage)
        sizes = {key: storage.nbytes() for key, reference in self._live.items()
                 if (storage := reference()) is not None}
        self._live = {key: self._live[key] for key in sizes}
        self.peak = max(self.peak, sum(sizes.values()))
        return result


def _peak(make: Callable[[], Step]) -> int:
    """Bytes of a rank in the second step, when the optimizer has its states."""
    with Storages() as storages:
        step = make()
        step()
        storages.peak = 0
        step()
    return storages.peak


def ratios(found: dict) -> list[Ratio]:
    """Speeds over those of the counterparts, by seconds and by processor seconds."""
    def column(what: str, name: str) -> list[float]:
        return [one[what][name] for one in found['rounds']]
    return [Ratio(f'{one} / {other}{note}', '', aim if what == 'seconds' else None,
                  Summary.of(paired_ratios(column(what, other), column(what, one))))
            for what, note in (('seconds', ''), ('processor', ', processor time'))
            for one, other, aim in PAIRS]


def table_of(found: dict) -> Table:
    """Everybody's seconds a step and bytes a rank."""
    options = found['options']
    table = Table('contestant', 'seconds a step', 'range', 'of a processor', 'peak bytes a rank',
                  'a parameter', title='{arch}, {batch} samples a rank, {ranks} ranks'.format(**options))
    for name in found['peaks'][0]:
        taken = Summary.of([one['seconds'][name] for one in found['rounds']])
        busy = Summary.of([one['processor'][name] for one in found['rounds']])
        peak = max(peaks[name] for peaks in found['peaks'])
        table.add_row(name, f'{taken.median:.4f}', f'{taken.smallest:.4f} to {taken.largest:.4f}',
                      f'{busy.median:.4f}', f'{peak / 1e6:.1f} MB', f'{peak / found["parameters"]:.1f}')
    return table
