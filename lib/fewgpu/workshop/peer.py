"""torchgpipe's GPipe, built and measured in the same way as ours, to compare with.

It is imported only when it is asked for: `--engine torchgpipe`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from torch import nn

from fewgpu.device import Device
from fewgpu.workshop.watch import Cores


def pipeline_of(engine: str) -> Callable[..., nn.Module]:
    """GPipe of 'fewgpu' or of 'torchgpipe': called with the same arguments.

    Raises SystemExit, with the remedy, where torchgpipe is not installed.
    """
    if engine == 'fewgpu':
        from fewgpu.gpipe import GPipe

        return GPipe
    try:
        import torchgpipe   # noqa: F401
    except ImportError:
        raise SystemExit('torchgpipe is not installed here: run pip install torchgpipe==0.0.7, '
                         'or leave --engine torchgpipe out') from None
    return torchgpipe_pipeline


def torchgpipe_pipeline(module: nn.Sequential, balance: Iterable[int], *, devices: Sequence[Device],
                        **options: Any) -> nn.Module:
    """torchgpipe.GPipe over the same devices.

    On a CPU its stages run in threads that it starts for every forward, and its backward in the
    caller's, so no thread is a device: the cores count as one device, with one memory (and the
    limits of all). An operation uses one thread, as on our devices.
    """
    import torchgpipe

    model = torchgpipe.GPipe(module, balance, devices=[device.torch for device in devices], **options)
    model.engine = 'torchgpipe'
    model.stage_devices = list(devices)
    if devices[0].is_virtual:
        limit = devices[0].memory_limit
        together = Cores(len(devices), threads=1, memory_limit=limit and limit * len(devices))
        model.stage_devices = [together] * len(devices)
        for partition in model.partitions:
            partition.forward = _counted(partition.forward, together)
    return model


def _counted(forward: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """What a forward allocates, in whichever thread it runs, counts as the device's."""
    @wraps(forward)
    def counted(*inputs: Any) -> Any:
        with device.counting():
            return forward(*inputs)
    return counted
