"""ZeRO: what replicas hold again and again, they share out: optimizer states, gradients, parameters

Two and four ranks train a small GPT with plain data parallelism and with ZeRO's stages 1, 2 and 3.
"""

import difflib
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.table import Table
from torch import nn

from fewgpu.data_parallel import DataParallel
from fewgpu.device import Device, one_thread
from fewgpu.launch import launch
from fewgpu.models.gpt import gpt, next_token_loss
from fewgpu.plot import Picture, lines
from fewgpu.plot.looks import title_of
from fewgpu.workshop.demos import Show, headed
from fewgpu.zero import ZeRO, bytes_per_rank

STAGES = {0: 'data parallel', 1: 'ZeRO 1: optimizer states', 2: 'ZeRO 2: gradients too',
          3: 'ZeRO 3: parameters too'}
MOVES = {0: 2, 1: 2, 2: 2, 3: 3}   # how often every parameter or its gradient moves in a step
KINDS = {'parameters': '#1f5583', 'gradients': '#c9a15a', 'optimizer': '#d9dfe4'}
RANKS, ROUNDS, ROWS, LENGTH = (2, 4), 6, 4, 32
FP32 = dict(K=8, parameter_bytes=4, gradient_bytes=4)   # Adam in float32: 16 bytes, as in the paper

#: (arXiv 1910.02054, table 1) GB a device for 7.5 billion parameters, by the number of devices
TABLE_1 = {1: (120, 120, 120), 4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88),
           256: (30.4, 15.4, 0.47), 1024: (30.1, 15.1, 0.12)}


class Found(NamedTuple):
    """Of a stage, on one rank."""

    held: dict[str, int]   # bytes by kind, between a backward and the step
    sent: int              # bytes of a step
    seconds: float         # a step, median
    losses: list[float]


def demo(show: Show) -> Figure:
    """Run it."""
    found = {ranks: launch(_measure, ranks)[0] for ranks in RANKS}
    parameters = sum(parameter.numel() for parameter in _network().parameters())
    show.say(f'{RANKS[0]} and then {RANKS[1]} ranks train a GPT of {parameters:,} parameters with Adam in '
             f'float32. Bytes are counted by the memory ledger between a backward and the update, when '
             f'activations are gone; what a rank sends, by its group; the formulas are those of the paper. '
             f'Seconds are those of the slower of two ranks, one a core, stages in turn, medians. '
             f'(Host and disk are not used here: the demo '
             f'zero-infinity is about those.)')
    show.table(_measured(found, parameters))
    show.table(_published())
    _judge(show, found, parameters)
    return _picture(found, parameters)


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return gpt(4, 96, vocabulary=128, longest=LENGTH)


def _data_parallel(module: nn.Module, batches: Sequence[torch.Tensor]) -> Iterator[float]:
    """A loss a step, as with any data parallelism."""
    model = DataParallel(module)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for tokens in batches:
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def _zero(module: nn.Module, batches: Sequence[torch.Tensor], stage: int = 3) -> Iterator[float]:
    """The same with ZeRO."""
    model = ZeRO(module, stage=stage, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
    for tokens in batches:
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        model.step()
        yield loss.item()


def _lines_to_change() -> int:
    """How many lines of the one training loop the other has not, the heads aside."""
    before, after = (inspect.getsource(loop).splitlines()[2:] for loop in (_data_parallel, _zero))
    return sum(line.startswith('- ') for line in difflib.ndiff(before, after))


def _measure() -> dict[int, Found]:
    """In every rank: all stages."""
    numbers = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randint(128, (ROWS, LENGTH), generator=numbers) for _ in range(ROUNDS)]
    with one_thread():
        counted = {stage: _counted(stage, batches[0]) for stage in STAGES}
        training = {stage: (partial(_zero, stage=stage) if stage else _data_parallel)(_network(), batches)
                    for stage in STAGES}
        seconds: dict[int, list[float]] = {stage: [] for stage in STAGES}
        losses: dict[int, list[float]] = {stage: [] for stage in STAGES}
        for _ in range(ROUNDS):
            for stage, steps in training.items():
                dist.barrier()
                start = time.perf_counter()
                losses[stage].append(next(steps))
                seconds[stage].append(time.perf_counter() - start)
    for stage in STAGES:   # a step takes as long as its slowest rank; the first one makes the models
        slowest = torch.tensor(seconds[stage][1:])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds[stage] = slowest.tolist()
    return {stage: Found(*counted[stage], statistics.median(seconds[stage]), losses[stage])
            for stage in STAGES}


def _counted(stage: int, tokens: torch.Tensor) -> tuple[dict[str, int], int]:
    """Bytes of the model states by kind, and bytes sent in a step."""
    device = Device()
    ledger = device.meter()
    with device.counting():
        model, update, sent = _made(stage)
        sizes = [ledger.allocated]
        for _ in range(2):
            before = sent()
            next_token_loss(model(tokens), tokens).backward()
            sizes.append(ledger.allocated)
            update()
            sizes.append(ledger.allocated)
    made, _, at_rest, with_gradients, _ = sizes
    # DataParallel makes room for gradients at once, ZeRO when they come.
    room = made - sum(parameter.nbytes for parameter in model.parameters()) if stage == 0 else 0
    return {'parameters': made - room, 'gradients': room + with_gradients - at_rest,
            'optimizer': at_rest - made}, sent() - before


def _made(stage: int) -> tuple[nn.Module, Callable[[], None], Callable[[], int]]:
    if stage:
        model = ZeRO(_network(), stage=stage, optimizer=torch.optim.Adam)
        return model, model.step, lambda: model.bytes_sent
    plain = DataParallel(_network())
    optimizer = torch.optim.Adam(plain.parameters())

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
    return plain, update, lambda: plain._group.bytes_sent


def _measured(found: dict[int, dict[int, Found]], parameters: int) -> Table:
    table = headed('Counted, and by the formulas of the paper (in brackets)', 'ranks', '', 'bytes a\nparameter',
                   'sent a step', 'ms a\nstep', f'loss\n{ROUNDS}')
    table.caption = (f'P: the bytes of the parameters, times (N-1)/N for N ranks. Loss {ROUNDS}: that of step {ROUNDS} '
                     f'on the rows of rank 0. Steps are timed with {RANKS[0]} ranks, a core each.')
    for ranks in RANKS:
        share = parameters * 4 * (ranks - 1) / ranks
        for stage, name in STAGES.items():
            one = found[ranks][stage]
            held = sum(one.held.values()) / parameters
            table.add_row(f'{ranks}', name, f'{held:.3f} ({bytes_per_rank(1, ranks, stage, **FP32):g})',
                          f'{one.sent / share:.3f} P ({MOVES[stage]} P)',
                          f'{1e3 * one.seconds:.0f}' if ranks == RANKS[0] else '-', f'{one.losses[-1]:.5f}',
                          end_section=stage == 3)
    return table


def _published() -> Table:
    table = headed('Published (ZeRO, table 1), and by the formula: GB a device of 7.5 billion parameters', 'devices',
                   *(f'stage {stage}\n{kind}' for stage in (1, 2, 3) for kind in ('published', 'formula')))
    for ranks, cells in TABLE_1.items():
        row = [text for stage, cell in enumerate(cells, 1)
               for text in (f'{cell:g}', f'{bytes_per_rank(7.5e9, ranks, stage) / 1e9:.2f}')]
        table.add_row(f'{ranks}', *row)
    return table


def _judge(show: Show, found: dict[int, dict[int, Found]], parameters: int) -> None:
    held = {(ranks, stage): sum(one.held.values()) for ranks, of_stages in found.items()
            for stage, one in of_stages.items()}
    off = max(abs(count / bytes_per_rank(parameters, ranks, stage, **FP32) - 1)
              for (ranks, stage), count in held.items())
    apart = max(abs(one / other - 1) for of_stages in found.values() for stage in (1, 2, 3)
                for one, other in zip(of_stages[stage].losses, of_stages[0].losses))
    alike = f'within {apart:.0e} (relative)' if apart else 'to the bit'
    changed = _lines_to_change()
    each = ', '.join(f'{held[RANKS[1], stage] / parameters:.1f}' for stage in STAGES)
    show.claims.test('C39', is_shared_out(off, apart, changed),
                     f'on {RANKS[1]} ranks a rank holds {each} bytes a parameter in stages 0 to 3, within '
                     f'{off:.2%} of the formula; losses are those of data parallelism {alike}; '
                     f'{changed} lines of the training loop change',
                     because='Shards are padded to equal lengths, and there are a few numbers beside them.')


def is_shared_out(off: float, apart: float, changed: int) -> bool:
    """C39: bytes a rank are off the formula by so little, losses off those of data parallelism, and so few lines
    of the training loop change."""
    return off < 0.01 and apart < 1e-3 and changed <= 5


def _picture(found: dict[int, dict[int, Found]], parameters: int) -> Figure:
    figure = Picture(figsize=(7.0, 6.4), layout='constrained')
    above, below = figure.subplots(2, 1, height_ratios=(3, 2.4))
    _bars(above, found, parameters)
    devices = list(TABLE_1)
    published = {f'stage {stage}': (devices, [TABLE_1[n][stage - 1] for n in devices]) for stage in (1, 2, 3)}
    lines(published, below, title='Published (table 1): 7.5 billion parameters, 16 bytes each', x='devices',
          y='GB a device', log='xy')
    return figure


def _bars(ax: Axes, found: dict[int, dict[int, Found]], parameters: int) -> None:
    """Bytes a parameter by kind: what was counted; a mark where the formula ends."""
    rows = [(ranks, stage) for ranks in RANKS for stage in STAGES]
    places = [number + 0.6 * (ranks == RANKS[1]) for number, (ranks, _) in enumerate(rows)]
    for place, (ranks, stage) in zip(places, rows):
        left = 0.0
        for kind, colour in KINDS.items():
            width = found[ranks][stage].held[kind] / parameters
            ax.barh(place, width, 0.62, left, color=colour, edgecolor='black', linewidth=0.6)
            left += width
        end = bytes_per_rank(1, ranks, stage, **FP32)
        ax.plot([end, end], [place - 0.42, place + 0.42], color='black', linewidth=1.6)
        ax.text(max(left, end) + 0.15, place, f'{left:.2f}', va='center', fontsize=8)
    ax.set_yticks(places, [f'{STAGES[stage]}, {ranks} ranks' for ranks, stage in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 17.5)
    ax.tick_params(labelsize=8)
    ax.spines[['right', 'top']].set_visible(False)
    title_of(ax, 'Counted: bytes a parameter on each rank', pad=22)
    handles = [Patch(facecolor=colour, edgecolor='black', label=kind) for kind, colour in KINDS.items()]
    handles.append(ax.plot([], [], color='black', linewidth=1.6, label='formula')[0])
    ax.legend(handles=handles, ncols=4, loc='lower left', bbox_to_anchor=(0, 1.0), fontsize=8, frameon=False,
              borderaxespad=0.1)
