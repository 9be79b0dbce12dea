"""The planner against the clock: seven ways to train, predicted from layers measured alone, and run here"""

from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from fewgpu import plot
from fewgpu.planner.cluster import Cluster, preset
from fewgpu.planner.growth import communication_share
from fewgpu.planner.known import known
from fewgpu.planner.search import fastest_first
from fewgpu.planner.ways import Prediction, Task
from fewgpu.plot.looks import Look, add_patch, label_rows, row_end, say, title_of
from fewgpu.workshop.demos import WITH_A_RUN, Show
from fewgpu.workshop.measured.plan import (
    DATA, LAYERS, PACE, WAYS, WIDTH, Result, bandwidth_of, on_paced_devices, on_ranks, predict)
from fewgpu.workshop.noise import Quiet, both, faster

PREDICTED, MEASURED = Look('predicted', '#b4d2ea', '#6d9cc0', '////'), Look('measured', '#1f5583', '#10324f')


def demo(show: Show) -> Figure:
    """Seven configurations, predicted and measured; C23, C33, C46."""
    show.say(f'{LAYERS} linear layers of {WIDTH} x {WIDTH} are measured one by one: each alone on a virtual device '
             f'that computes at {PACE:.0%} of the speed of a core. From these seconds and bytes, and nothing else, the '
             f'planner predicts six ways to train them on such devices, and data parallelism on two processes of that '
             f'speed, whose all-reduce is measured alone, too. All are run in turns, and the layers with them.')
    profile, measurements, quiet = on_paced_devices()
    results = {way.name: Result(predict(way, profile, bandwidth_of(way, profile)), *measurements[way]) for way in WAYS}
    results[DATA.name] = on_ranks(profile)
    show.table(_table(results))
    off = median(abs(result.error) for result in results.values())
    show.say(f'Half of the predictions are off by at most {off:.0%}. Not in them: the update, the loss, and what the '
             f'interpreter of schedules adds; and a layer alone takes longer than one among others, for its core has '
             f'slept. The more layers a device computes without a rest, the more it is faster than predicted.')
    _claims(show, results, off, quiet)
    return _picture(results)


def _table(results: dict[str, Result]) -> Table:
    table = Table(title='Predicted from layers measured alone, and measured', title_justify='left')
    table.add_column('way')
    for heading in ('samples/s\npredicted', '\nmeasured', '\nerror', 'MB a device\npredicted', '\ncounted'):
        table.add_column(heading, justify='right')
    for name, one in results.items():
        bytes_ = [f'{one.predicted.memory_bytes / 1e6:.1f}', f'{one.memory / 1e6:.1f}'] if one.memory else ['-', '-']
        table.add_row(name, f'{one.predicted.samples_per_second:.0f}', f'{one.speed:.0f}', f'{one.error:+.0%}', *bytes_)
    return table


def _claims(show: Show, results: dict[str, Result], off: float, quiet: Quiet) -> None:
    """What is measured counts on a quiet machine only."""
    first = max(results, key=lambda name: results[name].predicted.samples_per_second)
    fastest = max(results, key=lambda name: results[name].speed)
    show.claims.test('C33', quiet.verdict(predicts_well(first, fastest, off)),
                     f'predicted fastest: {first}; measured fastest: {fastest}; median error {off:.0%}{quiet.note}',
                     because='The planner searches over all of depth, width, micro-batch and recompute; here it is '
                             'asked about seven of its settings.')
    _test_c23(show)
    naive, pipe = results['model parallel, 2'].speed, results['GPipe, 2'].speed
    large = _ranked(Task(known('gpt-2.2B'), preset('v100-16', devices=64), 512))
    staged, shared = large['1F1B x data'], max((large[f'ZeRO-{stage}'] for stage in (1, 2, 3)), key=_speed)
    show.claims.test('C46', quiet.verdict(is_worth_it(pipe / naive, _speed(staged), _speed(shared))),
                     f'measured: GPipe {pipe / naive:.2f} times as fast as model parallelism, on the same two '
                     f'devices{quiet.note}; '
                     f'predicted for gpt-2.2B on 64 V100s with 25 Gbit/s a server: 1F1B x data '
                     f'{staged.samples_per_second:.0f} samples/s, {shared.name} {_speed(shared):.0f}, and plain data '
                     f'parallelism does not fit' * (not large['data parallel'].fits),
                     by=f'{WITH_A_RUN}the planner',
                     because='The second half depends on the network: a fast one lets ZeRO catch up '
                             '(./workshop.py plan --gpus 64 --bandwidth 10GB/s).')


def predicts_well(predicted: str, measured: str, off: float) -> bool:
    """C33: the way that was predicted to be the fastest is, and the median error is small."""
    return predicted == measured and off < 0.15


def is_worth_it(over_model_parallel: float, staged: float, shared: float) -> bool | None:
    """C46: a pipeline is faster than model parallelism (times, measured), and with replicas than the best of ZeRO
    for a large model (samples/s, predicted)."""
    return both(faster(over_model_parallel, 1.0), faster(staged, shared))


def is_better_where_it_fits(ahead: int, fits: int) -> bool:
    """C23, by the cases in which data parallelism fits, and those of them in which it is the faster."""
    return fits > 0 and ahead >= 0.9 * fits


def _ranked(task: Task) -> dict[str, Prediction]:
    return {one.name: one for one in fastest_first(task, stale=False)}


def _speed(one: Prediction) -> float:
    return one.samples_per_second if one.fits else 0.0


def _test_c23(show: Show) -> None:
    """Every model of the planner on 8 and 64 devices of three clusters: data parallelism where it fits."""
    fits, ahead, slower = 0, 0, []
    for name in ('alexnet', 'vgg16', 'resnet50', 'unet', 'bert-large', 'gpt-2.2B', 'gpt-3.8B', 'gpt-175B'):
        for place in ('v100-16', 'a100-80', 'rtx3090-24'):
            for devices in (8, 64):
                model = known(name)
                ways = _ranked(Task(model, preset(place, devices=devices), model.batch))
                if ways['data parallel'].fits:
                    fits += 1
                    pipes = max(_speed(ways[way]) for way in ('GPipe', '1F1B', '1F1B x data'))
                    if _speed(ways['data parallel']) >= pipes:
                        ahead += 1
                    else:
                        slower.append(f'{name} on {devices} {place}')
    show.claims.test('C23', is_better_where_it_fits(ahead, fits), by='the planner',
                     found=f'where data parallelism fits, it is predicted to be faster than every pipeline in '
                           f'{ahead} of {fits} cases (8 models, 8 and 64 devices, 3 clusters)',
                     because=f'The others: {", ".join(slower)}.' if slower else
                     'All-reduces hide behind the backward here.')


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
