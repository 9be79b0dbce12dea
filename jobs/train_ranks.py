#!/usr/bin/env python3
"""Train a network on MNIST on several ranks: what job_ddp.sh, job_pipeline_ranks.sh and job_hybrid.sh run.

    bash jobs/job_ddp.sh --ranks 2                  # two ranks on this machine
    sbatch --nodes=2 jobs/job_pipeline_ranks.sh     # on two nodes of a Slurm cluster

--batchsize counts the samples of all ranks together, and their order depends on the seed alone: with any number of
ranks the same samples are trained on in the same steps. A run that was stopped, or lost a node, goes on from its last
checkpoint as if nothing had happened: its losses are those of an uninterrupted run, bit for bit.
"""

import argparse
import contextlib
import json
import resource
import sys
import time
from pathlib import Path

import torch
import typer

from fewgpu import data
from fewgpu.alike import of_all
from fewgpu.checkpoint import Checkpoints, load_training_state, training_state
from fewgpu.group import Group, verify_met
from fewgpu.stopping import Stopping
from fewgpu.workshop.flag_types import count, number, whole
from fewgpu.workshop.ways import WAYS, build, rank, ranks
from fewgpu.workshop.writable import make_writable

ALIKE = 'arch', 'batchsize', 'samples', 'seed', 'datadir', 'lr', 'momentum'   # in a run that goes on
LONGEST = 200   # bytes of a place that are told
MEETING = 300   # seconds to wait for a rank at the start: importing torch from a shared disk may take minutes


def parse():
    """The flags, checked."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group('what is trained').add_argument
    add('--arch', default='resnet50', metavar='NAME', help='resnet50, another network of the kit, or small (resnet50)')
    add('--batchsize', type=count, default=256, metavar='N', help='samples a mini-batch, of all ranks together (256)')
    add('--samples', type=count, metavar='N', help='train on N samples only (all 60000)')
    add('--epochs', type=count, default=1, metavar='N', help='times through the samples (1)')
    add('--lr', type=number(above=0.0), default=0.01, help='learning rate of SGD (0.01)')
    add('--momentum', type=number(least=0.0), default=0.9, help='momentum of SGD (0.9)')
    add('--seed', type=whole(least=0), default=0, metavar='N',
        help='of the first weights and of the order of the samples (0)')
    add('--datadir', metavar='FOLDER', help="another MNIST, in torchvision's layout (the bundled one)")
    add = parser.add_argument_group('how').add_argument
    add('--way', choices=WAYS, required=True, help='ddp: every rank has the model, and rows of its own. pipeline: '
        'every rank has layers. hybrid: pipelines side by side. plain: one process, to compare with')
    add('--grid', metavar='RxS', help='of hybrid: replicas x stages (a replica a node; on a single node '
        'two, or one if the ranks are two or odd)')
    add('--num_microbatches', type=count, metavar='N', help='of a pipeline, a mini-batch (4 a stage)')
    add('--balance', type=layers, metavar='N,N,...', help='layers of each stage (about as many parameters each)')
    add('--schedule', metavar='NAME', help='of a pipeline: gpipe, 1f1b, zb-h1, ... (1f1b)')
    add('--time_limit', type=number(above=0.0), default=60.0, metavar='SECONDS', help='to wait for another rank (60)')
    add = parser.add_argument_group('output').add_argument
    add('--checkpoints', type=Path, metavar='FOLDER', help='save there, and go on from what is there (none)')
    add('--save_every', type=count, default=100, metavar='N', help='steps from one checkpoint to the next (100)')
    add('--report', type=Path, metavar='FILE', help='write what was measured to this JSON file')
    add('--stopped', type=Path, metavar='FILE', help='write the signal there if one has stopped the run')
    args = parser.parse_args()
    if args.grid and args.way != 'hybrid':
        parser.error(f'--grid is of --way hybrid, not of {args.way}: leave it out')
    for name in ('num_microbatches', 'balance', 'schedule'):
        if args.way in ('ddp', 'plain') and getattr(args, name) is not None:
            parser.error(f'--{name} is of pipelines, not of --way {args.way}: leave it out')
    args.schedule = args.schedule or '1f1b'
    try:   # before hours of work
        make_writable('--checkpoints', [], [args.checkpoints] if args.checkpoints else [])
        make_writable('--report', [args.report] if args.report else [])
    except typer.BadParameter as error:
        parser.error(str(error))
    return args


def layers(text):
    return [count(each) for each in text.split(',')]


def main():
    args = parse()
    if args.way != 'plain':
        verify_met(max(args.time_limit, MEETING))   # the ranks of torchrun meet
    torch.manual_seed(args.seed)        # the same first weights everywhere
    try:
        way = WAYS[args.way](args, build(args.arch))
    except ValueError as error:   # flags that do not fit each other, or the ranks
        raise SystemExit(str(error)) from None
    with naming(way.place):
        train(args, way)


def train(args, way):
    """All steps that are left. Rank 0 prints, and writes the report."""
    say = print if rank() == 0 else lambda line: None
    dataset = data.load('train', args.datadir)
    x, y = (data.subset(dataset, args.samples, seed=args.seed) if args.samples else dataset).tensors
    an_epoch = len(x) // args.batchsize     # what is left over is too little for a mini-batch
    if not an_epoch:
        raise SystemExit(f'{len(x)} samples are no mini-batch of {args.batchsize}: choose a smaller --batchsize')
    steps = args.epochs * an_epoch
    say(f'{args.arch}, {args.way}, {ranks()} rank{"s" * (ranks() > 1)}: {steps} steps of {args.batchsize} samples')
    stop, saves, losses = Stopping(time_limit=args.time_limit), Saves(args, way), []
    if saves.found:
        losses = saves.load()
        say(f'It goes on after step {len(losses)}.' if len(losses) < steps else
            f'Nothing is left to do: {args.checkpoints} has all {steps} steps.')
    done, seconds, asked = len(losses), [], None
    for step in range(done + 1, steps + 1):
        start = time.perf_counter()
        rows = order(args, (step - 1) // an_epoch, len(x))[(step - 1) % an_epoch]
        losses.append(way.step(x[rows], y[rows]))
        seconds.append(time.perf_counter() - start)
        say(f'step {step}/{steps} | loss {losses[-1]:.6f}')
        asked = stop.asked()                # the same on all ranks
        if asked or step == steps or step % args.save_every == 0:
            saves.save(step, losses)
        if asked and step < steps:
            break
    conclude(args, way, say, losses, seconds[2:] or seconds)   # the first steps fill caches
    if asked and len(losses) < steps:
        why = ' (the time limit is near)' if asked.name == 'SIGUSR1' else ''
        say(f'Stopped by {asked.name}{why} after step {len(losses)} of {steps}: {saves.how_to_go_on()}')
        if rank() == 0 and args.stopped:
            args.stopped.write_text(f'{asked.name}\n', encoding='utf-8')


def order(args, epoch, samples):
    """The rows of every mini-batch of an epoch. They depend on nothing else: a run that goes on has the same ones."""
    shuffled = torch.randperm(samples, generator=torch.Generator().manual_seed(2**20 * args.seed + epoch))
    return shuffled.split(args.batchsize)


class Saves:
    """The checkpoints of a run, if it has any, and what must be alike in a run that goes on."""

    def __init__(self, args, way):
        self.args, self.way = args, way
        self.settings = {name: getattr(args, name) for name in ALIKE}
        self.checkpoints = Checkpoints(args.checkpoints, time_limit=args.time_limit) if args.checkpoints else None
        self.found = self.checkpoints and self.checkpoints.latest()

    def load(self):
        """Go on from what was found; the losses until then."""
        before = self.found.own().get('more', {}).get('settings')
        if before is None:
            raise SystemExit(f'{self.args.checkpoints} holds checkpoints of another program: choose another folder')
        for name, value in self.settings.items():
            if before.get(name, value) != value:
                raise SystemExit(f'{self.args.checkpoints} is of a run with --{name} {before[name]}, and this one has '
                                 f'{value}: take the same, or another folder')
        return load_training_state(self.found, self.way.model, self.way.optimizer)['losses']

    def save(self, step, losses):
        if self.checkpoints:
            self.checkpoints.save(step, training_state(self.way.model, self.way.optimizer, losses=losses,
                                                       settings=self.settings))

    def how_to_go_on(self):
        folder = self.args.checkpoints
        return f'--checkpoints {folder} goes on from there' if folder else 'without --checkpoints nothing was saved'


def conclude(args, way, say, losses, seconds):
    """Print speed and memory, and write the report."""
    speed = len(seconds) * args.batchsize / sum(seconds) if seconds else 0.0
    memory = of_every_rank(way.place, peak(), args.time_limit)
    for place, size in memory.items():
        say(f'{place}: peak {size / 1e9:.3f} GB{"" if torch.cuda.is_available() else " (the whole process)"}')
    if seconds:
        say(f'train | {speed:.3f} samples/sec')
    if args.report and rank() == 0:
        report = {'way': args.way, 'arch': args.arch, 'ranks': ranks(), 'batch': args.batchsize, 'losses': losses,
                  'samples_per_second': speed, 'measured_steps': len(seconds), 'memory': memory}
        args.report.write_text(json.dumps(report, indent=1) + '\n', encoding='utf-8')


def peak():
    """The most memory that this rank has had, in bytes: its tensors on a GPU, or else the whole process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


def of_every_rank(place, size, time_limit):
    """The place of every rank, and its number. (torch's all_gather_object would run whatever a stranger sends.)"""
    told = [[size, *place.encode()[:LONGEST].ljust(LONGEST)]]
    if ranks() > 1:
        told = of_all(told[0], Group(time_limit=time_limit))
    return {bytes(text).decode(errors='replace').rstrip(): number for number, *text in told}


@contextlib.contextmanager
def naming(place):
    """An error in here tells where it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f'({place})')
        raise


if __name__ == '__main__':
    main()
