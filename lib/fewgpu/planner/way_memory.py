"""What fills a device: states of the training, and activations."""

from dataclasses import dataclass

from fewgpu.planner.model import StageSums

RECOMPUTE = ('never', 'layers', 'stages')   #: what is run again: nothing, layer by layer, whole stages


@dataclass(frozen=True)
class Precision:
    """Bytes: of a weight, of a gradient, of what the optimizer keeps of a parameter, and of an activation."""

    name: str
    weight: int
    gradient: int
    optimizer: int
    number: int

    @property
    def state(self) -> int:
        """Bytes of a parameter in training."""
        return self.weight + self.gradient + self.optimizer


#: Adam. Mixed precision: half weights and gradients, and K = 12: weights, momentum and variance in float32
#: (ZeRO, arXiv 1910.02054, section 3.1). In float32 the weights are not kept twice.
PRECISIONS = {'mixed': Precision('mixed', 2, 2, 12, 2), 'fp32': Precision('fp32', 4, 4, 8, 4)}


def states(parameters: float, precision: Precision, *, shards: int = 1, zero: int = 0) -> dict[str, float]:
    """Bytes of weights, gradients and optimizer states on one of so many ranks under ZeRO's stage 0 to 3.

    Stage 1 shards the optimizer's states, 2 the gradients too, 3 the weights too: 4 P + K P/N, 2 P + (2+K)
    P/N and (4+K) P/N bytes in mixed precision (arXiv 1910.02054, section 5).
    """
    share = [shards if zero >= stage else 1 for stage in (3, 2, 1)]
    return {'weights': precision.weight * parameters / share[0],
            'gradients': precision.gradient * parameters / share[1],
            'optimizer states': precision.optimizer * parameters / share[2]}


def activations(stage: StageSums, rows: int, in_flight: int, recompute: str) -> float:
    """The most numbers that a stage keeps of micro-batches of `rows` samples, `in_flight` of them at a time.

    Without recompute, their stashes. With recompute by layers, the inputs of layers, and the largest stash,
    which is back for one micro-batch at a time. With recompute by stages, the stage's inputs, and the stash
    of one micro-batch (GPipe's and PipeDream-2BW's; arXiv 2006.09503, section 3.3.2).
    """
    if recompute == 'never':
        return rows * in_flight * stage.stash
    if recompute == 'layers':
        return rows * (in_flight * stage.kept + stage.largest)
    return rows * (in_flight * stage.input + stage.stash)
