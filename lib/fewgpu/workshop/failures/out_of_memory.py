"""Does each stage fit into its device?

What the forwards keep for their backwards is more than one device has room for.
"""

from random import Random

import torch

from fewgpu.device import Device
from fewgpu.workshop.failures import Outcome, told
from fewgpu.workshop.failures.pipelines import DEVICES, PACE, mini_batch, pipeline

SIGN = ('the step ends in the middle, on all devices at about the same time, and the error names bytes: of a '
        'request, of a limit, in use')
WHAT = ('Device {device} had {limit:.1f} MB, and its stage needs {needed:.1f} MB: its parameters, gradients and what '
        'the forwards of all micro-batches keep.')
CHANGE = ('Keep less: 1f1b in place of gpipe (fewer micro-batches in flight), checkpoint=\'always\', more '
          'micro-batches, or fewer layers on that stage.')


def run(random: Random, *, fault: bool = True) -> Outcome:
    small = random.randrange(DEVICES)
    peaks, parameters = _needed()
    limits = [round(1.5 * peak) for peak in peaks]
    if fault:
        share = random.uniform(0.3, 0.8)   # of what the forwards keep
        limits[small] = round(parameters[small] + share * (peaks[small] - parameters[small]))
    devices = [Device('cpu', index=index, memory_limit=limit, pace=PACE) for index, limit in enumerate(limits)]
    pipe, x, message = pipeline(devices, schedule='gpipe'), mini_batch(), ''
    try:
        pipe.step(x, x)
    except torch.OutOfMemoryError as error:
        message = told(error)
    return Outcome(f'a pipeline of {DEVICES} stages', pipe.trace, message, {
        'device': small, 'limit': limits[small] / 1e6, 'needed': peaks[small] / 1e6})


def _needed() -> tuple[list[int], list[int]]:
    """Bytes of every stage at its peak in the first step, and of its parameters."""
    devices = [Device('cpu', index=index) for index in range(DEVICES)]
    ledgers = [device.meter() for device in devices]
    pipe, x = pipeline(devices, schedule='gpipe'), mini_batch()   # the parameters are counted while it is alive
    pipe.step(x, x)
    return [ledger.peak for ledger in ledgers], [ledger.parameters for ledger in ledgers]
