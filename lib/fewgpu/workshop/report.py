"""The report of a run (`--report FILE`): everything that was measured, as JSON, for `compare`."""

import argparse
import json
from dataclasses import asdict
from typing import Any

import torch

from fewgpu.trace import WAITS, Timeline
from fewgpu.workshop.watch import Watch


def write(args: argparse.Namespace, meter: Watch, *, loss: float, accuracy: float) -> None:
    """Write the report to `args.report`, if it was asked for.

    `loss` is that of the last mini-batch of training, `accuracy` (0 to 1) that of the test.
    """
    if args.report is not None:
        content = summary(args, meter) | {'loss': loss, 'accuracy': accuracy}
        args.report.write_text(json.dumps(content, indent=1) + '\n', encoding='utf-8')
        print(f'The report is in {args.report}', flush=True)


def summary(args: argparse.Namespace, meter: Watch) -> dict[str, Any]:
    """What was run, and what the meter says about it. Memory is in bytes, time in seconds."""
    pipeline = meter.is_pipeline
    return {
        'engine': meter.engine, 'arch': args.arch, 'batch': args.batchsize,
        'chunks': args.num_microbatches if pipeline else 1,
        'balance': list(meter.model.balance) if pipeline else [len(meter.model)],
        'balance_by': _how(args) if pipeline else None,
        'checkpoint': args.checkpoint if pipeline else None,
        'devices': [device.name for device in meter.stage_devices],
        'threads': 1 if pipeline else meter.cores,
        'samples': meter.samples, 'epochs': args.epochs, 'lr': args.lr, 'momentum': args.momentum,
        'samples_per_second': meter.samples_per_second, 'measured_steps': meter.measured_steps,
        'memory': [asdict(memory) for memory in meter.memory()],
        'memory_how': meter.memory_how, 'memory_limit': args.memory_limit,
        'busy_share': meter.busy_share, 'busy_how': meter.busy_how,
        'timeline': meter.timeline and as_lists(meter.timeline),
        'test_samples': args.test_samples, 'seed': args.seed, 'torch': torch.__version__,
    }


def as_lists(timeline: Timeline) -> dict[str, Any]:
    """A timeline as lists: names, and rows of [kind, stage, micro-batch, start, end]. Sends and
    receives are left out: a device is idle meanwhile."""
    return {'names': list(timeline.names),
            'rows': [[[span.op.kind, span.op.stage, span.op.micro_batch, span.start, span.end]
                      for span in row if span.op.kind not in WAITS] for row in timeline.rows]}


def _how(args: argparse.Namespace) -> str:
    return args.balance_by if isinstance(args.balance_by, str) else 'hand'
