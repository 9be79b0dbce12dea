"""Late gradients without old weights: where they diverge, and how PipeMare keeps them in check

An asynchronous pipeline that keeps one version of its weights is the fastest and the smallest, and may
diverge at a learning rate at which synchronous training does well. PipeMare (arXiv 1910.05124) lowers the
rate of stages whose gradients come late (T1), corrects the weights of the backward (T2), and begins
synchronously (T3).
"""

from collections.abc import Sequence
from functools import partial
from math import isfinite, nan
from statistics import fmean
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn

from fewgpu import Pipeline, get_devices, plot
from fewgpu.pipemare import DECAY, PipeMare, stability_limit
from fewgpu.plot.looks import GREY
from fewgpu.schedule import pipedream, versions_alive
from fewgpu.schedule import pipemare as schedule_of
from fewgpu.workshop.demos import Show
from fewgpu.workshop.digits import accuracy, mini_batches, smooth, unseen_digits
from fewgpu.workshop.late import gradient_error

STAGES, ROWS, WARM_UP, SEEDS = 8, 32, 20, (0, 1)
RATES, PART = (0.12, 0.08, 0.05, 0.03), 60   # learning rates, each for so many mini-batches
RUN, ANNEALING = PART * len(RATES), 3 * PART
CURVATURE, DELAYS = 1.0, (0, 1, 2, 3)


class Way(NamedTuple):
    """How a run treats late gradients."""

    schedule: str = 'pipemare'
    annealing: int = 0     # K of T1
    decay: float = 1.0     # D of T2; 1: none
    warm_up: int = 0       # synchronous mini-batches of T3


WAYS = {'synchronous': Way('1f1b'), 'late, uncorrected': Way(), 'T1': Way(annealing=ANNEALING),
        'T1 and T2': Way(annealing=ANNEALING, decay=DECAY),
        'T1, T2 and T3': Way(annealing=ANNEALING, decay=DECAY, warm_up=WARM_UP)}


def demo(show: Show) -> Figure:
    show.say('First a single weight on the first stage of a real pipeline, in a bowl of curvature 1: by theory its '
             'gradient, tau updates late, is stable below a learning rate of 2 sin(pi / (4 tau + 2)) (remembered '
             f'from the paper). Then a residual network of {STAGES} stages on MNIST; its learning rate goes down '
             f'from {RATES[0]} to {RATES[-1]} in {len(RATES)} parts, and T1 is over after three of them.')
    points = {delay: {share: size_after(delay, share * stability_limit(CURVATURE, delay)) for share in (0.9, 1.1)}
              for delay in DELAYS}
    runs = {name: [training(way, seed) for seed in SEEDS] for name, way in WAYS.items()}
    off = gradient_error(partial(pipedream, stashing=False)), gradient_error('pipemare')
    show.table(of_points(points))
    show.say(f'On the first of four stages a gradient is {off[0]:.1%} off the one that the weights of its forward '
             f'give; with T2 it is {off[1]:.1%} off.')
    show.table(of_runs(runs))
    verdict(show, points, off, runs)
    return picture(points, {name: found[0][0] for name, found in runs.items()})


class Bowl(nn.Module):
    """CURVATURE * w^2 / 2 for every row."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * x + CURVATURE * self.w ** 2 / 2


def size_after(delay: int, rate: float) -> float:
    """How large the weight's swings are at the end of a run, as a multiple of those in its middle."""
    model = nn.Sequential(Bowl(), *(nn.Identity() for _ in range(delay)))
    pipeline = Pipeline(model, [1] * (delay + 1), schedule='pipedream', loss_fn=lambda output, y: output.mean(),
                        devices=get_devices(delay + 1, kind='cpu'), optimizer=partial(torch.optim.SGD, lr=rate))
    seen: list[float] = []
    pipeline.optimizers[0, 0].register_step_post_hook(lambda *_: seen.append(abs(model[0].w.item())))
    row, third = torch.zeros(1, 1, dtype=torch.float64), 20 * (delay + 1)
    pipeline.train([(row, row)] * (3 * third))
    return max(seen[2 * third:]) / max(seen[third:2 * third])


class Residual(nn.Module):
    """x + f(x), whose gradient reaches the first stages undiminished."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def residual_network(seed: int, width: int = 48) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(784, width), *(Residual(width) for _ in range(STAGES - 2)),
                             nn.Linear(width, 10))


def training(way: Way, seed: int) -> tuple[list[float], float]:
    """The losses of a run, and the accuracy at its end."""
    def optimizer(parameters):
        own = torch.optim.SGD(parameters, lr=RATES[0])
        return own if way.schedule == '1f1b' else PipeMare(own, annealing=way.annealing, decay=way.decay)

    model, batches = residual_network(seed), mini_batches(RUN, ROWS, seed=seed)
    pipeline = Pipeline(model, [1] * STAGES, schedule=way.schedule, loss_fn=nn.functional.cross_entropy,
                        devices=get_devices(STAGES, kind='cpu'), optimizer=optimizer)
    losses = [pipeline.step(x, y) for x, y in batches[:way.warm_up]]
    for part, rate in enumerate(RATES):
        for group in (group for optimizer in pipeline.optimizers.values() for group in optimizer.param_groups):
            group['lr'] = rate
        losses += pipeline.train(batches[len(losses):(part + 1) * PART])   # which drains at its end only
    return [loss.item() for loss in losses], accuracy(model, unseen_digits())


def last_quarter(losses: Sequence[float]) -> float:
    """Its mean; nan where training diverged."""
    mean = fmean(losses[-RUN // 4:])
    return mean if isfinite(mean) and mean < 10 else nan


def of_points(points: dict[int, dict[float, float]]) -> Table:
    table = Table(title='A weight whose gradient is late, in a real pipeline', title_justify='left',
                  caption='Swings: the largest of the last third of a run, as a multiple of that of the middle third.',
                  caption_justify='left')
    for heading in ('delay', 'stages', 'limit of the\nlearning rate', 'swings, at\n0.9 of it', '\nat 1.1 of it'):
        table.add_column(heading, justify='right')
    for delay, sizes in points.items():
        table.add_row(str(delay), str(delay + 1), f'{stability_limit(CURVATURE, delay):.4f}',
                      *(f'{size:.2g} times' for size in sizes.values()))
    return table


def of_runs(runs: dict[str, list[tuple[list[float], float]]]) -> Table:
    table = Table(title=f'{STAGES} stages, {RUN} mini-batches of {ROWS}, two seeds',
                  title_justify='left')
    for heading in ('', 'loss, last quarter', 'accuracy, unseen'):
        table.add_column(heading, justify='right' if heading else 'left')
    for name, found in runs.items():
        losses = [last_quarter(losses) for losses, _ in found]
        table.add_row(name, ', '.join(f'{loss:.2f}' if isfinite(loss) else 'diverged' for loss in losses),
                      ', '.join(f'{share:.1%}' for _, share in found))
    return table


def verdict(show: Show, points: dict[int, dict[float, float]], off: tuple[float, float],
            runs: dict[str, list[tuple[list[float], float]]]) -> None:
    as_theory = has_that_limit(points)
    mean = {name: fmean(last_quarter(losses) for losses, _ in found) for name, found in runs.items()}
    shares = {name: fmean(share for _, share in found) for name, found in runs.items()}
    whole = 'T1, T2 and T3'
    kept = versions_alive(schedule_of(STAGES, 40))
    uncorrected = 'learns less' if isfinite(mean['late, uncorrected']) else 'diverges'
    show.claims.test(
        'P04', as_theory, 'a real pipeline of one weight, at 0.9 and 1.1 of the '
        'limit: its swings change by factors of ' + '; '.join(f'{sizes[0.9]:.2g} and {sizes[1.1]:.2g} (delay {delay})' 
                                                    for delay, sizes in points.items()),
        because='The limit 2 sin(pi / (4 delay + 2)) / curvature holds for a parabola; it is remembered from the '
                'paper, and a test sets it beside the eigenvalues of the delayed update.')
    show.claims.test(
        'C34', as_theory and is_corrected(off, mean, kept),
        f'Staleness hurts: {"the real pipeline diverges and converges where theory says so; " if as_theory else ""}'
        f'late and uncorrected, the network {uncorrected} at learning rates at which synchronous training '
        f'reaches a loss of {mean["synchronous"]:.2f}. PipeMare reaches '
        f'{mean[whole]:.2f}, with one version of the weights and no flush (accuracy {shares[whole]:.0%}, uncorrected '
        f'{shares["late, uncorrected"]:.0%}, synchronous {shares["synchronous"]:.0%}). Its T2 takes the error '
        f'of a gradient from {off[0]:.1%} to {off[1]:.1%}.',
        because='After so few mini-batches it is not as good as synchronous training: T1 slows the first stages '
                'down. T2 keeps an average of the changes, as large as the weights, and for each backward a copy.')


def has_that_limit(points: dict[int, dict[float, float]]) -> bool:
    """P04: at each delay, swings die away at 0.9 of the limit and grow at 1.1 of it."""
    return all(sizes[0.9] < 1 < sizes[1.1] for sizes in points.values())


def is_corrected(off: tuple[float, float], mean: dict[str, float], kept: Sequence[int]) -> bool:
    """C34: T2 brings a gradient nearer; late gradients train worse than synchronous ones, and PipeMare better
    than late ones without correction (losses; nan: it diverged), with one version of the weights a stage."""
    late, whole = mean['late, uncorrected'], mean['T1, T2 and T3']
    hurts = not late <= mean['synchronous']
    helps = isfinite(whole) and not late <= whole
    return off[1] < off[0] and hurts and helps and set(kept) == {1}


def picture(points: dict[int, dict[float, float]], curves: dict[str, list[float]]) -> Figure:
    figure = plot.Picture(figsize=(9.0, 7.4), layout='constrained')
    above, below = figure.subplots(2)
    delays = range(11)
    plot.lines({'limit by theory': (delays, [stability_limit(CURVATURE, delay) for delay in delays])}, above,
               title='At which learning rate late gradients diverge, by theory and in real pipelines',
               x='delay (updates)', y='learning rate', log='y')
    for share, mark, says in ((0.9, 'v', 'swings die away'), (1.1, '^', 'swings grow')):
        held = [delay for delay, sizes in points.items() if (sizes[share] < 1) == (share < 1)]
        above.plot(held, [share * stability_limit(CURVATURE, delay) for delay in held], mark, linestyle='none',
                   color=GREY, markersize=7, label=f'real run, {says}')
    above.legend(frameon=False, fontsize=8)
    plot.lines({name: ([*range(0, RUN, 8)], [loss if loss < 3.0 else nan for loss in smooth(losses)[::8]])
                for name, losses in curves.items()}, below,
               title='Losses; beyond 3 a training has diverged', x='mini-batches',
               y='mean of the last 20')
    return figure
