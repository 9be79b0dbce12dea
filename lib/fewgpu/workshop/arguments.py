"""The flags of the MNIST scripts: the same in all of them, with the same defaults.

They are read without importing torch, so that `--help` and a mistyped flag answer at once.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fewgpu.workshop.flag_types import count, number, whole
from fewgpu.workshop.machine import cores

ARCHITECTURES = ('resnet18', 'resnet50', 'resnet152', 'vgg16')   # as fewgpu.models has them
CHECKPOINTS = ('always', 'except_last', 'never')                 # as fewgpu.schedule has them
TRAIN_SAMPLES, TEST_SAMPLES = 60_000, 10_000                     # of MNIST

_MOST_CORES = 8   # that are stages unless more are asked for: a ResNet-18 has 14 layers


def parse(description: str | None, *, pipeline: bool = False,
          arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags of this command line, checked; a mistake ends the script with one sentence.

    `pipeline` tells whether `--devices` counts stages, and is kept as `args.pipeline`. What was
    left out is filled in: `devices` (int), `test_samples` (int). `memory_limit` is in bytes.
    """
    parser = _parser(description)
    args = parser.parse_args(arguments)
    args.pipeline = pipeline
    _check_together(parser, args)
    _fill_in(parser, args)
    return args


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f'{self.prog}: {message.removeprefix("argument ")} (see --help)\n')


def _parser(description: str | None) -> _Parser:
    parser = _Parser(description=description, allow_abbrev=False,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group('training').add_argument
    add('--arch', type=_arch, default='resnet50', metavar='NAME',
        help=f'{", ".join(ARCHITECTURES)}, or a ResNet of another depth (default: resnet50)')
    add('--batchsize', type=count, default=256, metavar='N', help='samples a mini-batch (256)')
    add('--epochs', type=count, default=1, metavar='N', help='times through the samples (1)')
    add('--lr', type=number(above=0.0), default=0.01, help='learning rate of SGD (0.01)')
    add('--momentum', type=number(least=0.0), default=0.9, help='momentum of SGD (0.9)')
    add('--seed', type=whole(least=0), default=0, metavar='N',
        help='of the first weights and of the order of the samples (0)')
    _add_data(parser)
    _add_devices(parser)
    _add_pipeline(parser)
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group('data and output').add_argument
    add('--samples', type=count, metavar='N', help='train on N samples of MNIST only (all 60000)')
    add('--test_samples', type=count, metavar='N',
        help='test on N samples only (as many as are trained on, at most 10000)')
    add('--datadir', metavar='FOLDER', help="another MNIST, in torchvision's layout (the bundled one)")
    add('--num_workers_dataloader', type=whole(least=0, most=256), default=0, metavar='N',
        help='processes that load data (0: the script itself)')
    add('--log_interval', type=count, default=10, metavar='N',
        help='mini-batches from one line of output to the next, which comes after ten seconds in '
             'any case (10)')
    add('--report', type=_writable, metavar='FILE', help='write what was measured to this JSON file')


def _add_devices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group('devices').add_argument
    add('--devices', type=count, metavar='N',
        help='stages of the pipeline: GPUs, or cores where there is no GPU (all GPUs, or the cores up '
             'to 8; at least 2: stages share a single GPU). The plain script takes one device, or N cores as one '
             'device. CUDA_VISIBLE_DEVICES= in the environment hides the GPUs')
    add('--memory_limit', type=_memory, metavar='SIZE',
        help='of each device, like 600MB: what does not fit is out of memory (none)')
    add('--find_batchsize', action='store_true',
        help='print the largest batch that fits the devices, and end')
    add('--find_depth', action='store_true',
        help='print the deepest ResNet that fits the devices at this --batchsize, and end')


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group('pipeline', 'the plain script accepts and ignores these').add_argument
    add('--num_microbatches', type=count, default=8, metavar='N',
        help='micro-batches a mini-batch; they need not divide it (8)')
    add('--balance_by', type=_balance_by, default='time', metavar='HOW',
        help='balance the stages by time or by memory, or give the layers of each, like 10,12 (time)')
    add('--checkpoint', choices=CHECKPOINTS, default='except_last',
        help='which micro-batches are recomputed (except_last)')
    add('--engine', choices=('fewgpu', 'torchgpipe'), default='fewgpu',
        help='whose GPipe runs the pipeline (fewgpu)')


def _check_together(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Flags that are wrong only beside others."""
    for flag, most in (('samples', TRAIN_SAMPLES), ('test_samples', TEST_SAMPLES)):
        if not args.datadir and (getattr(args, flag) or 0) > most:
            parser.error(f'--{flag}: MNIST has {most} samples, so ask for {most} at most, '
                         f'not {getattr(args, flag)}')
    if args.find_batchsize and args.find_depth:
        parser.error('--find_batchsize and --find_depth: ask for one at a time')
    if args.find_depth and args.arch == 'vgg16':
        parser.error('--find_depth is about ResNets: leave --arch vgg16 out')
    if isinstance(args.balance_by, list):
        stages = len(args.balance_by)
        if args.pipeline and args.devices not in (None, stages):
            parser.error(f'--balance_by gives layers for {stages} stages, but --devices asks for '
                         f'{args.devices}: let them agree')
        if args.find_depth:
            parser.error('--find_depth tries networks with different numbers of layers: let it '
                         'balance them by time or by memory')


def _fill_in(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """What depends on the machine; from here on torch is needed."""
    import torch

    gpus = torch.cuda.device_count()
    if args.devices is None:
        stages = gpus or min(cores(), _MOST_CORES)
        args.devices = (1 if not args.pipeline else max(stages, 2) if isinstance(args.balance_by, str)
                        else len(args.balance_by))
    if args.test_samples is None:
        args.test_samples = min(args.samples or TEST_SAMPLES, TEST_SAMPLES)
    if (args.find_batchsize or args.find_depth) and not gpus and args.memory_limit is None:
        parser.error('without a GPU the devices are cores and have no memory of their own: say how '
                     'much they may use, for example --memory_limit 600MB')
    if args.arch not in ARCHITECTURES:
        from fewgpu.models import depths

        depth = int(args.arch.removeprefix('resnet'))
        if depth not in (known := depths(depth + 16)):
            near = sorted(known, key=lambda other: abs(other - depth))[:2]
            parser.error(f'--arch: there is no ResNet of {depth} layers; near it are '
                         f'{" and ".join(f"resnet{other}" for other in sorted(near))}')


# The types of flags: each gives the value, or says what is wrong (numbers: see flag_types)


def _arch(text: str) -> str:
    if text not in ARCHITECTURES and not re.fullmatch(r'resnet\d{1,5}', text):
        raise argparse.ArgumentTypeError(f'there is no network {text!r}; choose one of {", ".join(ARCHITECTURES)}')
    return text


def _balance_by(text: str) -> str | list[int]:
    if text in ('time', 'memory'):
        return text
    if not re.fullmatch(r'[1-9]\d*(,[1-9]\d*)*', text):
        raise argparse.ArgumentTypeError(f'must be time, memory, or the layers of each stage like 10,12, not {text!r}')
    return [int(layers) for layers in text.split(',')]


def _memory(text: str) -> int:
    from fewgpu.meter import parse_bytes   # which imports torch

    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 10**4:   # '600' was meant to be something else
        raise argparse.ArgumentTypeError(f'{text!r} is next to nothing: write it with its unit, like 600MB')
    return size


def _writable(text: str) -> Path:
    """A path that can be written to, now: to find out after hours of training would be late."""
    path, new = Path(text), not Path(text).exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open('a'):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f'cannot write to {text} ({error.strerror})') from None
    return path


def as_flag(balance: Sequence[int]) -> str:
    """The flag that asks for this balance."""
    return f'--balance_by {",".join(map(str, balance))}'


def vary(args: argparse.Namespace, **changes: Any) -> argparse.Namespace:
    """A copy of the flags with some of them changed."""
    return argparse.Namespace(**{**vars(args), **changes})
