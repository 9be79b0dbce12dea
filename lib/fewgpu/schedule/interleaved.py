"""Interleaved 1F1B (Narayanan et al. 2021, "Megatron-LM", arXiv 2104.04473, section 2.2)."""

from fewgpu.schedule.one_f_one_b import in_turn
from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes


def interleaved(devices: int, micro_batches: int, *, v: int = 2) -> Schedule:
    """1F1B on devices that hold `v` stages each: device d holds stages d, d + devices, ...

        devices 2, micro-batches 2, v 2 (stages in front: device 0 holds 0 and 2, device 1 1 and 3)

        device 0 | 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        device 1 | 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1

    A device takes `devices` micro-batches through its first stage, the same ones through its next
    stage, and so on; backwards go from its last stage to its first. With equal costs the bubble is
    1F1B's divided by v; messages are v times as many. Device d of n stashes, all its stages
    together, min(m v, 2 (n - 1 - d) + (v - 1) n + 1) micro-batches if v > 1. With v = 1 it is 1F1B.

    Raises ValueError if there is no device, micro-batch or stage, or if the micro-batches are no
    multiple of the devices: the order goes by whole groups.
    """
    verify_sizes(min(devices, v), micro_batches)
    if micro_batches % devices:
        raise ValueError(
            f'interleaved needs a multiple of {devices} micro-batches, one a device, not '
            f'{micro_batches}: take {-(-micro_batches // devices) * devices}, or 1f1b')

    def ops(kind: str, device: int) -> list[Op]:
        turns = range(v) if kind == 'F' else reversed(range(v))
        own_stages = [turn * devices + device for turn in turns]
        return [Op(kind, stage, first + i) for first in range(0, micro_batches, devices)
                for stage in own_stages for i in range(devices)]

    # The way of a micro-batch to its last stage and back to this device: v - 1 rounds through all
    # devices, then down and up the rest. Megatron doubles the rest, so that with several stages a
    # device has another group's work while it waits.
    return Schedule('interleaved', devices * v, micro_batches, tuple(
        tuple(in_turn(ops('F', device), ops('B', device),
                      warm_up=(devices - 1 - device) * min(v, 2) + (v - 1) * devices))
        for device in range(devices)))
