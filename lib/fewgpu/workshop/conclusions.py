"""What one may conclude from a comparison: sentences made from the figures of that run alone."""

import math
from collections.abc import Iterator, Mapping, Sequence

from fewgpu.simulate import allowed_speed_up
from fewgpu.workshop.contestants import Result
from fewgpu.workshop.table import memory, speed

TIE = 0.05      # two speeds closer than this are not told apart: a few steps cannot
# The plain model never waits: if it gets less of its cores than this, others had the rest.
ENOUGH = {'plain': 0.9, 'plain-all': 0.6}

Done = Mapping[str, Result]   # those that have a report, by key


def conclusions(results: Sequence[Result], efficiency: float | None = None) -> list[str]:
    """A few sentences about each pair of contestants that both have figures.

    `efficiency` is that of the machine's cores together (`machine.two_core_efficiency`), None where
    devices are not cores.
    """
    done = {result.contestant.key: result for result in results if result.report}
    topics = (_disturbed(done), _pipeline(done, efficiency), _all_cores(done), _model_parallel(done),
              _recompute(done), _fullest_device(done), _peer(done), _learning(done), _noise(done))
    return [text for topic in topics if (text := ' '.join(topic))]


def _disturbed(done: Done) -> Iterator[str]:
    for key, enough in ENOUGH.items():
        plain = done.get(key)
        if plain and (busy := plain.report['busy_share']) and busy[0] < enough:
            cores = plain.report['threads']
            yield (f'This machine was busy with something else: {plain.prose} got {busy[0]:.0%} of '
                   f"its {f'{cores} cores' if cores > 1 else 'core'}. Do not trust the speeds of this "
                   'run; memory is not affected.')
            return


def _pipeline(done: Done, efficiency: float | None) -> Iterator[str]:
    if not {'plain', 'gpipe'} <= done.keys():
        return
    plain, gpipe = done['plain'], done['gpipe']
    stages = len(gpipe.report['balance'])
    allowed = allowed_speed_up(gpipe.report['chunks'], stages)
    yield (f'{_capital(gpipe.prose)} on {stages} devices was {_as_fast(gpipe, plain)}'
           f'{_batches(gpipe, plain)}; the bubble allows {allowed:.2f}x.')
    if len(set(gpipe.report['devices'])) < stages:
        yield ('But its stages share a GPU, which gets no faster by being shared: look at the memory '
               'of this run, and at the speed where every stage has a GPU of its own.')
    elif efficiency is not None:
        yield (f'Cores of this machine that all work at once reach {efficiency:.0%} of what each '
               f'reaches alone, so expect about {allowed * efficiency:.2f}x at most.')
        yield from _work(gpipe, plain)


def _work(pipeline: Result, plain: Result) -> Iterator[str]:
    """What the devices computed, for the same samples, beside the plain model that never waits."""
    if busy := pipeline.report['busy_share']:
        more = sum(busy) * speed(plain) / speed(pipeline) - 1
        yield (f'For a sample its devices computed {abs(more):.0%} {"longer" if more > 0 else "less"} '
               f'than the plain model did, which takes all {plain.report["batch"]} samples at once: '
               'small micro-batches use a device less well, and cores share caches and memory.')


def _all_cores(done: Done) -> Iterator[str]:
    if {'plain-all', 'gpipe'} <= done.keys():
        plain, gpipe = done['plain-all'], done['gpipe']
        yield (f'It was {_as_fast(gpipe, plain)}. On the cores of one machine PyTorch can also share '
               'out every single operation; among GPUs it does not, so there the baseline is the '
               'plain model on one.')


def _model_parallel(done: Done) -> Iterator[str]:
    if {'plain', 'model-parallel'} <= done.keys():
        naive, plain = done['model-parallel'], done['plain']
        busy = naive.report['busy_share']
        shares = f' (busy {_listed([f"{share:.0%}" for share in busy])} of a step)' if busy else ''
        yield (f'Model parallel, whose devices take turns{shares}, was {_as_fast(naive, plain)}'
               f'{_batches(naive, plain)}.')


def _recompute(done: Done) -> Iterator[str]:
    if {'gpipe', 'gpipe-recompute'} <= done.keys():
        with_it, without = done['gpipe-recompute'], done['gpipe']
        before, after = _peak(without), _peak(with_it)
        memory_too = (f' and the peak of its fullest device by {after / before - 1:+.0%}, from '
                      f'{_gb(before)} to {_gb(after)}') if before and after else ''
        yield (f'Recompute changed the speed of GPipe by {speed(with_it) / speed(without) - 1:+.0%}'
               f'{memory_too}.')


def _fullest_device(done: Done) -> Iterator[str]:
    plain = done.get('plain')
    if not plain or not (peak := _peak(plain)):
        return
    share = memory(plain)[0].parameters / peak
    yield (f'Of the {_gb(peak)} of {plain.prose}, parameters were {share:.0%}: '
           + ('activations and gradients fill the memory.' if share < 0.5 else 'they fill the memory.'))
    for pipeline in (done[key] for key in ('gpipe', 'gpipe-recompute') if key in done):
        if peaks := [device.peak for device in memory(pipeline)]:
            yield (f'The fullest device of {pipeline.prose} held {max(peaks) / peak:.2f} times as '
                   f'much, all its devices together {sum(peaks) / peak:.2f} times'
                   f'{_batches(pipeline, plain)}.')


def _peer(done: Done) -> Iterator[str]:
    if {'torchgpipe', 'gpipe-recompute'} <= done.keys():
        ours, peer = done['gpipe-recompute'], done['torchgpipe']
        totals = [sum(device.peak for device in memory(one)) for one in (ours, peer)]
        peaks = (f'; the peaks of all devices together are {_gb(totals[0])} and {_gb(totals[1])}'
                 if all(totals) else '')
        yield (f'{_capital(ours.prose)} was {_as_fast(ours, peer)}, with the same balance, chunks and '
               f'recompute{peaks}.')


def _learning(done: Done) -> Iterator[str]:
    reports = [result.report for result in done.values()]
    if len(reports) < 2:
        return
    losses = [report['loss'] for report in reports]
    accuracies = [report['accuracy'] for report in reports]
    rows, mean = reports[0]['test_samples'], sum(accuracies) / len(accuracies)
    error = math.sqrt(max(mean * (1 - mean), 1 / rows) / rows)   # of a share of `rows` draws
    told_apart = max(accuracies) - min(accuracies) > 3 * error
    yield (f"After the same {reports[0]['samples']} samples, losses were {min(losses):.3f} to "
           f'{max(losses):.3f} and test accuracies {min(accuracies):.1%} to {max(accuracies):.1%}. '
           f'With {rows} test images chance alone moves an accuracy by {100 * error:.1f} points (one '
           f'standard error), so these {"differ" if told_apart else "cannot be told apart"}.')
    if len({(report['batch'], report['chunks']) for report in reports}) > 1:
        yield ('Losses need not be equal: batch norm sees one micro-batch at a time in a pipeline, '
               'and the mini-batch in the plain model.')
    if len({report['batch'] for report in reports}) > 1:
        yield 'A larger batch also means fewer updates from the same samples.'


def _noise(done: Done) -> Iterator[str]:
    if done:
        steps = sorted({result.report['measured_steps'] for result in done.values()})
        counted = f'{steps[0]} to {steps[-1]} steps' if len(steps) > 1 else (
            f'{steps[0]} steps' if steps[0] > 1 else 'one step')
        yield (f'Each speed is that of {counted} in one run, and speeds less than {TIE:.0%} apart are '
               'called the same here. Run it again to see how far they move on this machine.')


def _as_fast(one: Result, other: Result) -> str:
    """To follow 'it was'."""
    ratio = speed(one) / speed(other)
    return f"{'as fast' if abs(ratio - 1) < TIE else f'{ratio:.2f}x as fast'} as {other.prose}"


def _peak(result: Result) -> int:
    """Of its fullest device, 0 if nothing was measured."""
    return max((device.peak for device in memory(result)), default=0)


def _batches(one: Result, other: Result) -> str:
    """To be said where two contestants had different batches."""
    ours, theirs = one.report['batch'], other.report['batch']
    return '' if ours == theirs else f' (batch {ours} against {theirs})'


def _gb(size: int) -> str:
    return f'{size / 1e9:.3f} GB'


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _listed(items: Sequence[str]) -> str:
    return ', '.join(items[:-1]) + f' and {items[-1]}' if len(items) > 1 else items[0]
