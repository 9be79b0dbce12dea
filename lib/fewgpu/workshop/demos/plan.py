"""The planner against the clock: seven ways to train, predicted from layers measured alone, and run here"""

import time
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn

from fewgpu import DataParallel, Device, Pipeline, launch, plot
from fewgpu.link import Link
from fewgpu.planner import way_pipeline
from fewgpu.planner.cluster import Cluster, preset
from fewgpu.planner.growth import communication_share
from fewgpu.planner.known import known
from fewgpu.planner.model import Model
from fewgpu.planner.own import own
from fewgpu.planner.search import fastest_first
from fewgpu.planner.way_memory import Precision
from fewgpu.planner.ways import Prediction, Knobs, Task
from fewgpu.plot.looks import Look, add_patch, label_rows, row_end, say, title_of
from fewgpu.workshop.demos import Show

WIDTH, LAYERS, ROWS, CHUNKS = 512, 8, 64, 8   # of a linear layer; of the model; of a micro-batch; a mini-batch
PACE = 0.1           # of a core: so slow that other programs on this machine hardly matter
WARM_UP, ROUNDS = 3, 3
SGD = Precision('float32, SGD', weight=4, gradient=4, optimizer=0, number=4)
PREDICTED, MEASURED = Look('predicted', '#b4d2ea', '#6d9cc0', '////'), Look('measured', '#1f5583', '#10324f')


class Way(NamedTuple):
    """One configuration."""

    name: str
    devices: int
    setting: Knobs
    link: float = 0.0   #: what a message takes, as a share of what a stage computes for a micro-batch

    @property
    def chunks(self) -> int:
        return self.setting.chunks(ROWS * CHUNKS)


WAYS = (
    Way('plain', 1, Knobs(rows=ROWS)),
    Way('model parallel, 2', 2, Knobs(stages=2, rows=ROWS * CHUNKS, schedule='one at a time')),
    Way('GPipe, 2', 2, Knobs(stages=2, rows=ROWS, schedule='gpipe')),
    Way('GPipe, 4, recompute', 4, Knobs(stages=4, rows=ROWS, schedule='gpipe', recompute='stages')),
    Way('1F1B, 4', 4, Knobs(stages=4, rows=ROWS)),
    Way('1F1B, 4, slow link', 4, Knobs(stages=4, rows=ROWS), link=0.3))
DATA = Way('data parallel, 2', 2, Knobs(replicas=2, rows=ROWS * CHUNKS // 2))


class Result(NamedTuple):
    """Samples a second, and bytes on the fullest device (0 where they were not counted)."""

    predicted: Prediction
    speed: float
    memory: int

    @property
    def error(self) -> float:
        return self.predicted.samples_per_second / self.speed - 1.0


def demo(show: Show) -> Figure:
    """Seven configurations, predicted and measured; C23, C33, C46."""
    show.say(f'{LAYERS} linear layers of {WIDTH} x {WIDTH} are measured one by one: each alone on a virtual device '
             f'that computes at {PACE:.0%} of the speed of a core. From these seconds and bytes, and nothing else, the '
             f'planner predicts six ways to train them on such devices, and data parallelism on two processes of that '
             f'speed, whose all-reduce is measured alone, too. All are run in turns, and the layers with them.')
    profile, measurements, share = _on_paced_devices()
    results = {way.name: Result(_predict(way, profile, _bandwidth(way, profile)), *measurements[way]) for way in WAYS}
    results[DATA.name] = _on_ranks(profile)
    off = median(abs(result.error) for result in results.values())
    show.table(_table(results))
    off = median(abs(result.error) for result in results.values())
    show.say(f'Half of the predictions are off by at most {off:.0%}. Not in them: the update, the loss, and what the '
             f'interpreter of schedules adds.')
    quiet = share > 0.8
    if not quiet:
        show.say(f'This machine is busy with other programs: a thread got {share:.0%} of a core. What was measured '
                 f'says little; run it again when the machine is quiet.')
    _claims(show, results, off, quiet)
    return _picture(results)


# Predicted


def _predict(way: Way, profile: Model, bandwidth: float) -> Prediction:
    """From a model that has seconds in place of FLOPs."""
    cluster = Cluster(devices=way.devices, per_server=1, memory=1e12, flops32=1.0, efficiency=1.0, overhead=0.0,
                      latency=0.0, between=bandwidth)
    return way_pipeline.predict(way.name, Task(profile, cluster, ROWS * CHUNKS, SGD), way.setting)


def _bandwidth(way: Way, profile: Model) -> float:
    """Bytes a second, such that a message takes the way's share of a stage's time."""
    if not way.link:
        return 1e15
    seconds = ROWS * (profile.flops + sum(layer.gradient_flops for layer in profile.layers)) / way.devices
    return ROWS * WIDTH * 4 / (way.link * seconds)


# Measured


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))


def _pipeline(way: Way, profile: Model) -> Pipeline:
    setting, bandwidth = way.setting, _bandwidth(way, profile)
    devices = [Device('cpu', index=index, pace=PACE, link=Link(0.0, bandwidth)) for index in range(way.devices)]
    balance = [stage.layers for stage in profile.stages(setting.stages)]
    return Pipeline(_model(), balance, devices=devices, chunks=way.chunks, loss_fn=nn.functional.mse_loss,
                    schedule='1f1b' if setting.schedule == '1f1b' else 'gpipe',
                    optimizer=partial(torch.optim.SGD, lr=0.01),
                    checkpoint='never' if setting.recompute == 'never' else 'always')


def _share_of_a_core() -> float:
    """What a thread that computes for a tenth of a second is given, beside other programs."""
    begun, computed = time.perf_counter(), time.thread_time()
    while time.perf_counter() < begun + 0.1:
        pass
    return (time.thread_time() - computed) / (time.perf_counter() - begun)


def _on_paced_devices() -> tuple[Model, dict[Way, tuple[float, int]], float]:
    """What layers cost; samples a second and bytes of every way; the share of a core that there was meanwhile.

    Ways and layers take turns, and medians count. Links are as slow as the first measurement of layers says.
    """
    x = torch.randn(ROWS * CHUNKS, WIDTH)
    alone = Pipeline(_model(), [1] * LAYERS, schedule='gpipe', chunks=1, loss_fn=nn.functional.mse_loss,
                     devices=[Device('cpu', index=index, pace=PACE) for index in range(LAYERS)])
    layers, shares = [_layers(alone, x[:ROWS]) for _ in range(WARM_UP)][-1:], []
    pipelines = {way: _pipeline(way, _profile(layers)) for way in WAYS}
    peaks = {way: _peak(pipe, x) for way, pipe in pipelines.items()}
    seconds: dict[Way, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        shares.append(_share_of_a_core())
        for way, pipe in pipelines.items():
            layers.append(_layers(alone, x[:ROWS]))
            begun = time.perf_counter()
            pipe.step(x, x)
            seconds[way].append(time.perf_counter() - begun)
    return (_profile(layers), {way: (len(x) / median(seconds[way]), peaks[way]) for way in WAYS}, median(shares))


def _layers(alone: Pipeline, x: torch.Tensor) -> list[tuple[float, float]]:
    """Seconds of every layer's forward and backward, of one micro-batch on which one layer works at a time."""
    alone.step(x, x)
    return [tuple(next(span.seconds for span in row if span.op.kind == kind) for kind in 'FB')
            for row in alone.trace.rows]


def _profile(rounds: list[list[tuple[float, float]]]) -> Model:
    """The layers, with seconds in place of FLOPs: the median of all, for they are alike."""
    forward, backward = (median(one[kind] for layers in rounds for one in layers) / ROWS for kind in (0, 1))
    counted = own(_model(), torch.randn(ROWS, WIDTH))
    return replace(counted, layers=tuple(replace(layer, flops=forward, backward=backward)
                                         for layer in counted.layers))


def _peak(pipe: Pipeline, x: torch.Tensor) -> int:
    """Bytes on the fullest device in a step, counted (in the first step, which warms up)."""
    for device in pipe.devices:
        device.meter()
    pipe.step(x, x)
    peaks = [pipe.trace.peak(row) or 0 for row in range(len(pipe.devices))]
    for device in pipe.devices:
        device.unmeter()
    return max(peaks)


def _on_ranks(profile: Model) -> Result:
    """Data parallelism on two processes; the slower rank, and its all-reduce, count."""
    found = launch(_rank, 2)
    bandwidth = 4 * profile.parameters / max(alone for alone, _ in found)   # two ranks send all bytes once
    return Result(_predict(DATA, profile, bandwidth), ROWS * CHUNKS / max(step for _, step in found), 0)


def _rank() -> tuple[float, float]:
    """Median seconds of an all-reduce of all gradients, alone, and of a step."""
    from fewgpu.collectives import Group, all_reduce

    model, group, device = DataParallel(_model()), Group(None), Device('cpu', pace=PACE)
    x, gradients = torch.randn(DATA.setting.rows, WIDTH), torch.zeros(LAYERS * WIDTH * (WIDTH + 1))
    optimizer, alone, steps = torch.optim.SGD(model.parameters(), lr=0.01), [], []
    for _ in range(1 + ROUNDS):
        begun = time.perf_counter()
        all_reduce(gradients, group)
        reduced = time.perf_counter()
        optimizer.zero_grad()
        with device.paced():
            nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        alone.append(reduced - begun)
        steps.append(time.perf_counter() - reduced)
    return median(alone[1:]), median(steps[1:])


# Shown


def _table(results: dict[str, Result]) -> Table:
    table = Table(title='Predicted from layers measured alone, and measured', title_justify='left')
    table.add_column('way')
    for heading in ('samples/s\npredicted', '\nmeasured', '\nerror', 'MB a device\npredicted', '\ncounted'):
        table.add_column(heading, justify='right')
    for name, one in results.items():
        bytes_ = [f'{one.predicted.memory_bytes / 1e6:.1f}', f'{one.memory / 1e6:.1f}'] if one.memory else ['', '']
        table.add_row(name, f'{one.predicted.samples_per_second:.0f}', f'{one.speed:.0f}', f'{one.error:+.0%}', *bytes_)
    return table


def _claims(show: Show, results: dict[str, Result], off: float, quiet: bool) -> None:
    """What is measured counts on a quiet machine only."""
    first = max(results, key=lambda name: results[name].predicted.samples_per_second)
    fastest = max(results, key=lambda name: results[name].speed)
    show.claims.test('C33', (first == fastest and off < 0.15) if quiet else None,
                     f'predicted fastest: {first}; measured fastest: {fastest}; median error {off:.0%}',
                     because='The planner searches over all of depth, width, micro-batch and recompute; here it is '
                             'asked about seven of its settings.')
    _test_c23(show)
    naive, pipe = results['model parallel, 2'].speed, results['GPipe, 2'].speed
    large = _ranked(Task(known('gpt-2.2B'), preset('v100-16', devices=64), 512))
    staged, shared = large['1F1B x data'], max((large[f'ZeRO-{stage}'] for stage in (1, 2, 3)), key=_speed)
    show.claims.test('C46', (pipe > naive and _speed(staged) > _speed(shared)) if quiet else None,
                     f'measured: GPipe {pipe / naive:.2f} times as fast as model parallelism, on the same two devices; '
                     f'predicted for gpt-2.2B on 64 V100s with 25 Gbit/s a server: 1F1B x data '
                     f'{staged.samples_per_second:.0f} samples/s, {shared.name} {_speed(shared):.0f}, and plain data '
                     f'parallelism does not fit' * (not large['data parallel'].fits),
                     because='The second half depends on the network: a fast one lets ZeRO catch up '
                             '(./workshop.py plan --gpus 64 --bandwidth 10GB/s).')


def _ranked(task: Task) -> dict[str, Prediction]:
    return {one.name: one for one in fastest_first(task, stale=False)}


def _speed(one: Prediction) -> float:
    return one.samples_per_second if one.fits else 0.0


def _test_c23(show: Show) -> None:
    """Every model of the planner on 8 and 64 devices of three clusters: data parallelism where it fits."""
    fits, faster, slower = 0, 0, []
    for name in ('alexnet', 'vgg16', 'resnet50', 'unet', 'bert-large', 'gpt-2.2B', 'gpt-3.8B', 'gpt-175B'):
        for place in ('v100-16', 'a100-80', 'rtx3090-24'):
            for devices in (8, 64):
                model = known(name)
                ways = _ranked(Task(model, preset(place, devices=devices), model.batch))
                if ways['data parallel'].fits:
                    fits += 1
                    pipes = max(_speed(ways[way]) for way in ('GPipe', '1F1B', '1F1B x data'))
                    if _speed(ways['data parallel']) >= pipes:
                        faster += 1
                    else:
                        slower.append(f'{name} on {devices} {place}')
    show.claims.test('C23', faster >= 0.9 * fits, by='the planner',
                     found=f'where data parallelism fits, it is predicted to be faster than every pipeline in '
                           f'{faster} of {fits} cases (8 models, 8 and 64 devices, 3 clusters)',
                     because=f'The others: {", ".join(slower)}.' if slower else 'All-reduces hide behind the backward here.')


def _picture(results: dict[str, Result]) -> Figure:
    figure = plot.Picture(figsize=(12.0, 4.0), layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=[1.2, 1.0])
    _bars(left, results)
    machines = [1, 2, 4, 8, 16, 32]
    shares = {name: (machines, communication_share(known(name), Cluster(per_server=1), machines))
              for name in ('alexnet', 'vgg16', 'resnet50')}
    plot.lines(shares, right, title='Share of communication, predicted', log='x',
               x='data parallelism: machines of one V100, 25 Gbit/s', y='of a step')
    right.set_ylim(0.0, 1.0)
    right.yaxis.set_major_formatter(lambda share, _: f'{share:.0%}')
    return figure


def _bars(ax: Axes, results: dict[str, Result]) -> None:
    longest = max(max(one.speed, one.predicted.samples_per_second) for one in results.values())
    for row, (name, one) in enumerate(results.items()):
        add_patch(ax, PREDICTED, 0.0, row - 0.19, one.predicted.samples_per_second, 0.36)
        add_patch(ax, MEASURED, 0.0, row + 0.19, one.speed, 0.36)
        row_end(ax, max(one.speed, one.predicted.samples_per_second), row, f'{one.speed:.0f}, error {one.error:+.0%}')
        say(ax, f'{name}: predicted {one.predicted.samples_per_second:.0f} samples/s, measured {one.speed:.0f}')
    label_rows(ax, results)
    ax.set_xlim(0.0, longest)
    title_of(ax, 'Samples/s', pad=20)
    ax.legend(handles=[add_patch(ax, look, 0.0, 0.0, 0.0, 0.0) for look in (PREDICTED, MEASURED)],
              labels=['predicted', 'measured'], loc='lower left', bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=2,
              fontsize=8, borderaxespad=0.2, borderpad=0.0)
