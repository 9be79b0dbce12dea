"""What the figures of `./workshop.py compare --all` say about the claims of the lectures."""

from collections.abc import Mapping
from typing import Any

from fewgpu.planner.cluster import preset
from fewgpu.planner.growth import communication_share
from fewgpu.planner.known import known
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.noise import NOISE, both, faster

Found = Mapping[str, Mapping[str, Any]]
POINTS = 0.05  # of a step, by which the share of communication must grow, to be called growing
PIPELINES = ('gpipe', '1f1b', 'pipedream', '2bw')
SERVERS = (1, 2, 4, 8, 16)                     # of which the cost model tells the share of communication
GROWING = ('alexnet', 'vgg16', 'resnet50')
UNSTEADY = 'No verdict from seconds: the cores were shared with another program, or there are too few GPUs. '


def conclude(found: Found, steady: bool) -> None:
    """Print them all; those that rest on seconds only on a `steady` machine."""
    claims = Claims()
    if {'model-parallel', 'data-parallel', 'zero', *PIPELINES} <= found.keys():
        _pipelines(claims, found, steady)
    if chunks := found.get('sweep-chunks'):
        _optimum(claims, chunks, steady)
    if sizes := found.get('sweep-batch'):
        _larger(claims, sizes)
        if deep := found.get('sweep-depth'):
            _deeper(claims, sizes, deep, steady)
    shares = growth()
    claims.test('C05', grows(shares), '; '.join(
        f'{name} {each[1]:.0%} of a step with {SERVERS[1]} machines, {each[-1]:.0%} with {SERVERS[-1]}'
        for name, each in shares.items()), by='the cost model',
        because=f'Yes means by {POINTS:.0%} of a step or more. One V100 a machine, 25 Gbit/s between them, 32 images '
                'a GPU, no overlap with the backward.')


def _pipelines(claims: Claims, found: Found, steady: bool) -> None:
    """C46: every pipeline, not the best of them, against model parallelism, and against data parallelism and ZeRO."""
    speed = {key: found[key]['samples_per_second'] for key in (*PIPELINES, 'model-parallel', 'data-parallel', 'zero')}
    rival = max(speed['data-parallel'], speed['zero'])
    over_naive, over_data = ([faster(speed[key], other) for key in PIPELINES]
                             for other in (speed['model-parallel'], rival))
    claims.test('C46', both(*over_naive, *over_data) if steady else None,
                f'{over_naive.count(True)} of {len(PIPELINES)} pipelines are faster than model parallelism, '
                f'{over_data.count(True)} than data parallelism and ZeRO, which is data parallel, too; samples/sec: '
                + ', '.join(f'{key} {one:.1f}' for key, one in speed.items()),
                because=('' if steady else UNSTEADY) + f'Faster means by {NOISE:.0%} or more. Here the model fits '
                        'every device, and gradients stay in one machine, which is when data parallelism does best.')


def optimum(speeds: list[float]) -> bool | None:
    """Is the best between the ends, and both ends slower by more than noise? None where noise hides it."""
    best = max(speeds)
    low = (1 - NOISE) * best
    if len(speeds) < 3 or speeds[0] >= low and speeds[-1] >= low:
        return None
    return speeds[0] < low and speeds[-1] < low


def _optimum(claims: Claims, chunks: Mapping[str, Any], steady: bool) -> None:
    """C15."""
    claims.test('C15', optimum(chunks['speeds']) if steady else None, ', '.join(
        f'{count}: {speed:.1f}' for count, speed in zip(chunks['counts'], chunks['speeds']))
                + ' samples/sec by micro-batches',
        because=('' if steady else UNSTEADY) + 'Yes means that fewest and most are both slower than the best by '
                f'{NOISE:.0%} or more, and no verdict that neither is.')


def larger(sizes: list[int], plainly: list[int], piped: list[int]) -> tuple[int, int] | None:
    """The largest batch but one, and the largest that a pipeline's fullest device holds in what that takes plainly
    (0: none); None where there are no two sizes."""
    if len(sizes) < 2:
        return None
    return sizes[-2], max((size for size, held in zip(sizes, piped) if held <= plainly[-2]), default=0)


def _larger(claims: Claims, sizes: Mapping[str, Any]) -> None:
    """C22: bytes are counted, and do not depend on how busy the machine is."""
    pair = larger(sizes['sizes'], sizes['plain_bytes'], sizes['pipeline_bytes'])
    held = f'{sizes["plain_bytes"][-2] / 1e6:.0f} MB' if pair else ''
    claims.test('C22', None if pair is None else pair[1] > pair[0],
                'only one size of batch was measured' if pair is None else
                f'in the {held} that batch {pair[0]} takes plainly, no device of a pipeline needs more for '
                + (f'batch {pair[1]}' if pair[1] else 'no size that was tried'),
                because='Sizes are doubled, so that less than twice the batch is not seen. Of balancing this says '
                        'nothing.')


def _deeper(claims: Claims, sizes: Mapping[str, Any], deep: Mapping[str, Any], steady: bool) -> None:
    """C32: batches are measured, depths simulated."""
    speeds = sizes['pipeline']
    enough = steady and len(speeds) > 1 and len(deep['depths']) > 1
    claims.test('C32', both(faster(speeds[-1], speeds[0]), faster(deep['per_device'][0], deep['per_device'][-1]),
                            deep['bytes'][-1] < deep['bytes'][0]) if enough else None,
                f'pipeline, measured: {speeds[0]:.1f} samples/sec at batch {sizes["sizes"][0]}, {speeds[-1]:.1f} at '
                f'{sizes["sizes"][-1]}; simulated: a device of {deep["depths"][-1]} stages does '
                f'{deep["per_device"][-1] / deep["per_device"][0]:.0%} of what it does alone, and holds '
                f'{deep["bytes"][-1] / deep["bytes"][0]:.0%} of the bytes', by='this run and the simulator',
                because='' if steady else UNSTEADY)


def growth() -> dict[str, list[float]]:
    """C05, C26: by the cost model, the share of a step that data parallelism spends on communication."""
    cluster = preset('v100-16', per_server=1)
    return {name: communication_share(known(name), cluster, SERVERS) for name in GROWING}


def grows(shares: Mapping[str, list[float]]) -> bool:
    """Does every share rise from several machines to most of them, by more than `POINTS`, and never fall?"""
    return all(each[-1] - each[1] >= POINTS and each == sorted(each) for each in shares.values())
