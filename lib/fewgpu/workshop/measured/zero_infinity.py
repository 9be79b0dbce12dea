"""What the demonstration of ZeRO-Infinity measures: steps of a chain of layers, offloaded in several ways.

Unless it is said otherwise the disk is a simulated one: a `HostStore` that takes the time of its bandwidth.
"""

import time

import torch
import torch.nn.functional as F
from torch import nn

from fewgpu.activations import train_in_segments
from fewgpu.device import Device
from fewgpu.link import Link
from fewgpu.offload import HostStore
from fewgpu.offload.offloaded import Offloaded
from fewgpu.tiled import TiledLinear

PACE = 0.5          # of the device: while it computes, a core is free for what is loaded
LAYERS, WIDTH, ROWS = 12, 256, 3072


def chain(layers: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def offloaded(bandwidth: float, depth: int) -> Offloaded:
    return Offloaded(chain(LAYERS, WIDTH), optimizer=torch.optim.Adam, loss_fn=F.mse_loss, depth=depth,
                     device=Device('cpu', pace=PACE, link=Link(0.0, bandwidth)), store=HostStore(bandwidth))


def bandwidth_for(share: float, x: torch.Tensor) -> float:
    """With which the weights of a layer take that share of its forward on the device."""
    layer, device, found = chain(1, WIDTH), Device('cpu', pace=PACE), []
    for _ in range(15):
        start = time.perf_counter()
        with device.active(), device.paced():
            layer(x)
        found.append(time.perf_counter() - start)
    return 4 * WIDTH * (WIDTH + 1) / (share * min(found))


def resident_step(module: nn.Sequential, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor,
                  recomputed: bool) -> None:
    """With everything on the device, but for the update, which is as fast as the host's of the offloaded model."""
    device = Device('cpu', pace=PACE)
    with device.active():
        with device.paced():
            if recomputed:
                train_in_segments(module, LAYERS, x, lambda out: F.mse_loss(out, y), device)
            else:
                F.mse_loss(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def read_in_both_ways() -> tuple[dict[str, float], bool]:
    """In every rank: seconds of a step that the rank waits for loads, and whether results are the same."""
    models = {reading: Offloaded(chain(8, WIDTH), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), depth=1,
                                 loss_fn=F.mse_loss, device=Device('cpu'), store=HostStore(bandwidth=5e6),
                                 reading=reading) for reading in ('broadcast', 'slices')}
    waited: dict[str, list[float]] = {reading: [] for reading in models}
    for _ in range(3):
        for reading, model in models.items():
            model.step(torch.ones(4, WIDTH), torch.zeros(4, WIDTH))
            waited[reading].append(model.times.waiting)
    one, other = (model.state_dict() for model in models.values())
    return ({reading: min(found) for reading, found in waited.items()},   # the least disturbed step
            all(torch.equal(value, other[name]) for name, value in one.items()))


def tiled_step(linear: nn.Linear, count: int, x: torch.Tensor, y: torch.Tensor,
                device: Device) -> tuple[int, torch.Tensor]:
    """The peak of a step, and the weight after it."""
    device.meter()
    model = Offloaded(nn.Sequential(TiledLinear.of(linear, count)), loss_fn=F.mse_loss, device=device, depth=0,
                      optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    model.step(x, y)
    return device.ledger.peak, torch.cat([value for name, value in model.state_dict().items() if 'weights' in name])
