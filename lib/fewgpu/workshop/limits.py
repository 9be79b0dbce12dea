"""How high can you go? The largest batch, or the deepest ResNet, that fits the devices.

A size is tried by what the script itself does: its `build` and its `train`, on one mini-batch. (One
of a single sample comes first: then the optimizer's momentum is there, as it is in all later
steps.) `fewgpu.workshop.search` chooses the sizes.

The peak of a plain model is the same in every step. That of a stage differs by a micro-batch's
output or so: what it has sent is its own until the neighbour fetches it, sooner or later.
"""

import argparse
import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from fewgpu.device import Device
from fewgpu.meter import Memory
from fewgpu.workshop.arguments import TRAIN_SAMPLES, as_flag, vary
from fewgpu.workshop.search import largest
from fewgpu.workshop.watch import Watch

Build = Callable[[argparse.Namespace], tuple[Any, Any, Watch]]   # model, optimizer, meter
Train = Callable[[Any, Any, Watch, list[Any]], float]

_DEEPEST = 3_000   # layers; a search must end somewhere


def find(args: argparse.Namespace, build: Build, train: Train) -> None:
    """Search for what `--find_batchsize` or `--find_depth` asks for, and print it.

    Raises SystemExit with a sentence if not even the smallest size fits, or if virtual devices are
    promised more memory than the machine has.
    """
    trials = Trials(args, build, train)
    trials.check_machine()
    gc.freeze()   # all that is there already: the collections between the trials take milliseconds
    try:
        (_find_batchsize if args.find_batchsize else _find_depth)(args, trials)
    finally:
        gc.unfreeze()


def _find_batchsize(args: argparse.Namespace, trials: 'Trials') -> None:
    chunks = args.num_microbatches if args.pipeline else 1
    print(f'The largest batch of {args.arch} that fits {trials.room}:', flush=True)
    trials.keep_one_balance(8 * chunks)
    batch = largest(lambda size: trials.peaks(f'batch {size}', batchsize=size), 1.0,
                    most=TRAIN_SAMPLES, start=max(chunks, 4), step=chunks)
    if not batch:
        raise SystemExit(f'Not even a batch of 1 fits {trials.room}: allow more memory or choose a smaller network.')
    after = f'{batch + 1} does not' if batch < TRAIN_SAMPLES else 'MNIST has no more samples'
    print(f'The largest batch that fits is {batch} ({after}).')
    trials.end(f'--arch {args.arch} --batchsize {batch}', find_batchsize=batch)


def _find_depth(args: argparse.Namespace, trials: 'Trials') -> None:
    depths = [18, 34, *range(35, _DEEPEST + 1, 3)]   # 152 is left out: it has another shape
    print(f'The deepest ResNet that fits {trials.room}, at batch {args.batchsize}:', flush=True)
    place = largest(lambda size: trials.peaks(f'resnet{depths[size - 1]}', arch=f'resnet{depths[size - 1]}'),
                    1.0, most=len(depths), start=3)
    if not place:
        raise SystemExit(f'Not even resnet18 fits {trials.room}: allow more memory or choose a smaller --batchsize.')
    depth = depths[place - 1]
    after = f'{depths[place]} layers do not' if place < len(depths) else 'deeper ones were not tried'
    print(f'The deepest ResNet that fits has {depth} layers ({after}).')
    trials.end(f'--arch resnet{depth} --batchsize {args.batchsize}', find_depth=depth)


class Trials:
    """Training steps at sizes that may not fit."""

    def __init__(self, args: argparse.Namespace, build: Build, train: Train) -> None:
        self._args, self._build, self._train = args, build, train
        self._runs: list[dict[str, Any]] = []

    @property
    def room(self) -> str:
        """The memory that there is, in words."""
        if self._args.memory_limit is None:
            return 'the memory of each GPU'
        return f'{self._args.memory_limit / 1e6:,.0f} MB a device'

    def check_machine(self) -> None:
        if torch.cuda.is_available() or not hasattr(os, 'sysconf'):
            return
        devices = self._args.devices if self._args.pipeline else 1
        machine = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
        if devices * self._args.memory_limit > machine:
            raise SystemExit(f'{devices} x {self.room} is more than the {machine / 1e9:.1f} GB of this machine: '
                             'choose a smaller --memory_limit')

    def keep_one_balance(self, batch: int) -> None:
        """Balance by time once: it turns out a little different each time it is measured."""
        if self._args.pipeline and self._args.balance_by == 'time':
            model, _, meter = self._build(vary(self._args, batchsize=batch))
            if meter.is_pipeline:
                print(f'  balance {list(model.balance)}, by time, for batch {batch}', flush=True)
                self._args = vary(self._args, balance_by=list(model.balance))

    def peaks(self, what: str, **changes: Any) -> list[float] | None:
        """One step with these flags changed: the peak of every device as a share of its memory,
        or None if one ran out of it."""
        print(f'  {what:12}', end='', flush=True)
        begun = time.monotonic()
        memory = self._step(vary(self._args, **changes))
        if isinstance(memory, str):
            outcome, shares = memory, None
        else:
            shares = [one.peak / room for one, room in memory]
            outcome = ', '.join(f'{one.name} peak {one.peak / 1e9:.3f} GB' for one, _ in memory)
        seconds = time.monotonic() - begun
        print(f'{outcome} ({seconds:.1f} s)', flush=True)
        self._runs.append({**changes, 'peaks': shares, 'seconds': seconds})
        return shares

    def _step(self, args: argparse.Namespace) -> list[tuple[Memory, float]] | str:
        """Memory of every device, and how much it may be; or how it ran out of memory."""
        try:
            model, optimizer, meter = self._build(args)
            if isinstance(args.balance_by, list) and meter.is_pipeline and list(model.balance) != args.balance_by:
                raise SystemExit(f'the script was asked for the balance {args.balance_by} and made '
                                 f'{list(model.balance)}: '
                                 'let step 3 take the numbers, if args.balance_by has them')
            room = _room(meter.stage_devices, args.memory_limit)
            self._train(model, optimizer, meter, [_samples(1), _samples(args.batchsize)])
            return [(memory, room[memory.name]) for memory in meter.memory()]
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and 'ALLOC_FAILED' not in str(error):
                raise
            return str(error).splitlines()[0].split('. ')[0]
        finally:
            model = optimizer = meter = None
            gc.collect()
            torch.cuda.empty_cache()

    def end(self, flags: str, **answer: int) -> None:
        """Say how to train what was found, and write the report if it was asked for."""
        args = self._args
        if args.memory_limit is not None:
            flags += f' --memory_limit {args.memory_limit / 1e6:.15g}MB'
        if args.pipeline and isinstance(args.balance_by, list):
            flags += f' {as_flag(args.balance_by)}'
        print(f'Train it with: {flags}')
        if args.pipeline:
            print('(A step of a pipeline may need a little more than another: for a long run stay a little below.)')
        if args.report is not None:
            content = {**answer, 'memory_limit': args.memory_limit, 'runs': self._runs}
            args.report.write_text(json.dumps(content, indent=1) + '\n', encoding='utf-8')


def _samples(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(rows, 1, 28, 28), torch.zeros(rows, dtype=torch.int64)


def _room(devices: list[Device], limit: int | None) -> dict[str, int]:
    """Bytes that may be used, by the name of the device; stages on one GPU have it together."""
    room = {}
    for name, stages in Counter(device.name for device in devices).items():
        device = next(device for device in devices if device.name == name)
        if device.is_virtual:
            room[name] = device.memory_limit
        else:
            free = torch.cuda.mem_get_info(device.torch)[0] + torch.cuda.memory_reserved(device.torch)
            room[name] = free if limit is None else min(free, stages * limit)
    return room
