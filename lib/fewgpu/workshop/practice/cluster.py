"""A model of equal blocks, a cluster of equal devices, and a plan of how to train the one on the other."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A chain of equal blocks. Seconds are those of one device, bytes those of one block."""

    blocks: int
    forward: float       #: seconds of a block's forward, for each sample
    backward: float      #: seconds of its backward, for each sample
    start: float         #: seconds that each forward and each backward of a block takes besides, whatever its samples
    weights: float       #: bytes of its weights; its gradients have as many when they travel
    state: float         #: bytes of its gradients and of the optimizer's state, which stay beside the weights
    activations: float   #: bytes that its forward keeps for its backward, for each sample
    boundary: float      #: bytes that go into a block, or come out of it, for each sample


@dataclass(frozen=True)
class Cluster:
    """Equal devices, each of which has a link to every other."""

    devices: int
    memory: float      #: bytes of a device
    bandwidth: float   #: bytes a second of a link, in each direction


@dataclass(frozen=True)
class Plan:
    """`width` replicas of a pipeline of `depth` stages: depth * width devices."""

    depth: int
    width: int
    micro_batch: int          #: samples of a micro-batch
    recompute: bool = False

    def __str__(self) -> str:
        return (f'depth {self.depth}, width {self.width}, micro-batches of {self.micro_batch}'
                f'{", with recompute" if self.recompute else ""}')


PARAMETERS = 12 * 1920**2 + 13 * 1920   # of a block of width 1920 (arXiv 2104.04473)

GPT = Model(blocks=48, forward=24 * 512 * 1920**2 * (1 + 512 / (6 * 1920)) / 45e12,
            backward=48 * 512 * 1920**2 * (1 + 512 / (6 * 1920)) / 45e12, start=5e-4, weights=2 * PARAMETERS,
            state=14 * PARAMETERS, activations=512 * (34 * 1920 + 5 * 20 * 512), boundary=2 * 512 * 1920)
"""A GPT of 2.1 billion parameters in its blocks (width 1920, 20 heads), for 512 tokens a sample, in mixed precision
with Adam, on devices that reach 45 TFLOP/s. (The time to start is assumed.)"""

GPUS = Cluster(devices=64, memory=16e9, bandwidth=10e9)
