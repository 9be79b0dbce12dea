"""What a script prints while it trains."""

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from fewgpu.workshop.machine import cores
from fewgpu.workshop.watch import Watch

_PATIENCE = 10.0   # seconds after which a line is due, whatever --log_interval says


class Log:
    """Lines of this form, every `--log_interval` mini-batches and at the end of an epoch:

        train | 1/1 epoch (4%) | 692.340 samples/sec (estimated)
        CPU 0: allocated 0.271 GB, peak 7.900 GB

    and, where the output is a terminal, a progress bar below them.
    """

    def __init__(self, args: argparse.Namespace, meter: Watch) -> None:
        self._args, self._meter = args, meter
        self._epoch = 0
        self._print: Callable[[str], None] = _print
        for line in headlines(args, meter):
            self._print(line)

    def batches(self, loader: Collection[Any]) -> Iterator[Any]:
        """The mini-batches of one epoch; in between, lines are printed."""
        self._epoch += 1
        printed = time.monotonic()
        with self._bar(len(loader)) as advance:
            for number, batch in enumerate(loader, start=1):
                yield batch
                advance()
                due = (number % self._args.log_interval == 0
                       or time.monotonic() - printed > _PATIENCE)
                if due and number < len(loader):
                    self._print(f'{self._line(100 * number / len(loader))} (estimated)')
                    self._print_memory()
                    printed = time.monotonic()

    def trained(self, loss: float) -> None:
        """An epoch is over; `loss` is that of its last mini-batch."""
        self._print(f'{self._line(100)} | loss {loss:.4f}')
        self._print_memory()

    def tested(self, loss: float, accuracy: float) -> None:
        """The end: mean loss and accuracy (0 to 1) on the test samples."""
        self._print(f'test | loss {loss:.4f} | accuracy {accuracy:.4f}')
        self._print(f'Memory: {self._meter.memory_how}.')

    def _line(self, percent: float) -> str:
        return (f'train | {self._epoch}/{self._args.epochs} epoch ({percent:.0f}%) | '
                f'{self._meter.samples_per_second:.3f} samples/sec')

    def _print_memory(self) -> None:
        for memory in self._meter.memory():
            self._print(str(memory))

    @contextlib.contextmanager
    def _bar(self, steps: int) -> Iterator[Callable[[], None]]:
        """A progress bar, if there is a terminal for it; gives what moves it on by one step."""
        if not sys.stdout.isatty():
            yield lambda: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        with Progress(MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), transient=True) as bar:
            task = bar.add_task('', total=steps)
            self._print = lambda line: bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
            try:
                yield lambda: bar.advance(task)
            finally:
                self._print = _print


def _print(line: str) -> None:
    print(line, flush=True)   # at once, also into a file


def headlines(args: argparse.Namespace, meter: Watch) -> Iterator[str]:
    """What is trained where, and what the devices are."""
    names = [device.name for device in meter.stage_devices]
    where = ', '.join(dict.fromkeys(names))
    if meter.is_pipeline:
        yield (f'{args.arch} on {where}, a pipeline of {meter.engine}: balance {list(meter.model.balance)}, '
               f'batch {args.batchsize} in {args.num_microbatches} micro-batches, recompute {args.checkpoint}')
    else:
        yield f'{args.arch} on {where}, a plain model: batch {args.batchsize}'
    if meter.is_pipeline and not meter.devices[0].is_virtual:
        for name, stages in Counter(names).items():
            if stages > 1:
                yield f'{stages} stages share {name}, so expect no speed-up.'
    if isinstance(args.balance_by, list) and meter.is_pipeline and list(meter.model.balance) != args.balance_by:
        yield (f'Beware: --balance_by asks for {args.balance_by}, and the script made it {list(meter.model.balance)} '
               '(step 3: args.balance_by may be the numbers themselves).')
    if meter.is_pipeline and meter.engine != args.engine:
        yield f'Beware: --engine asks for {args.engine} (step 4: pipeline_of(args.engine) is its GPipe).'
    if meter.devices[0].is_virtual and args.samples is None:
        yield f'All of MNIST takes an hour on cores: --samples {8 * args.batchsize} is a taste.'
    if meter.devices[0].is_virtual:
        yield f'No GPU here: {_describe(meter)}.'
    if args.pipeline and not meter.is_pipeline:
        yield f'This is not yet a pipeline: the model is not wrapped in GPipe (step 4), and all of it is on {where}.'


def _describe(meter: Watch) -> str:
    if meter.engine != 'fewgpu' and meter.cores > 1:
        return f'{meter.cores} cores are one device'
    if meter.cores > cores():
        return f'{meter.cores} virtual devices share {cores()} core{"s" * (cores() > 1)}, so expect no speed-up'
    return 'every device is one core, with a memory of its own' if meter.is_pipeline else 'the device is one core'
