"""What a planner knows about a network: its layers in order, and the stages that they can be cut into.

Everything is counted for one sample, in FLOPs and in numbers (not bytes: a number has 2 bytes in mixed
precision and 4 in float32). Imports no torch.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple


@dataclass(frozen=True)
class Sizes:
    """The sizes of one layer of the sequence: where a model can be cut is behind it.

    parameters: numbers.
    flops: of a forward of one sample; a multiplication and an addition are two. `backward` is that of
        the backward; None: twice as many.
    stash: numbers that one sample's forward leaves for its backward. `whole` of them are kept whole by
        every tensor-parallel rank; the others are split.
    output: numbers that one sample hands to the next layer; `carried` are those of long skips that pass it.
    reduced: numbers of a sample that its tensor-parallel ranks all-reduce in a forward, and again in a
        backward.
    recompute: whether recompute by layers drops its stash.
    tied: parameters that it shares with the first layer: a copy of them is needed where the two are on
        different devices.
    """

    name: str
    parameters: float
    flops: float
    stash: float
    output: float
    backward: float | None = None
    carried: float = 0.0
    whole: float = 0.0
    reduced: float = 0.0
    recompute: bool = True
    tied: float = 0.0

    @property
    def gradient_flops(self) -> float:
        """FLOPs of its backward for one sample."""
        return 2.0 * self.flops if self.backward is None else self.backward

    def stash_on(self, tensor: int) -> float:
        """What each of so many tensor-parallel ranks keeps of a sample."""
        return self.whole + (self.stash - self.whole) / tensor


class StageSums(NamedTuple):
    """Sums over the layers of a stage, on each of the tensor-parallel ranks that hold it."""

    layers: int
    parameters: float
    forward: float      #: FLOPs of a sample
    backward: float     #: FLOPs of a sample
    again: float        #: FLOPs of a sample that recompute by layers does once more
    repeated: int       #: layers that it runs again
    stash: float        #: numbers of a sample, without recompute
    kept: float         #: numbers of a sample that are left with recompute by layers
    largest: float      #: numbers of the largest stash that recompute by layers brings back at a time
    input: float        #: numbers of a sample that come in
    crossing: float     #: numbers of a sample that go out; 0 behind the last stage
    reduced: float      #: numbers of a sample that are all-reduced in a forward


@dataclass(frozen=True, eq=False)
class Model:
    """A network as a chain of layers.

    `sample` are the numbers of an input, `batch` the samples of a mini-batch that it is usually trained
    with, `heads` the most tensor-parallel ranks that its layers can be split among (their number divides
    it; 1: none).
    """

    name: str
    layers: tuple[Sizes, ...] = field(repr=False)
    sample: float
    batch: int = 256
    heads: int = 1
    about: str = ''   #: its sizes, for people
    _cuts: dict[tuple[int, int], tuple[StageSums, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f'{self.name} has no layers: a model is a sequence of at least one')

    @property
    def parameters(self) -> float:
        """All parameters, tied ones once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> float:
        """FLOPs of a forward of one sample."""
        return sum(layer.flops for layer in self.layers)

    @property
    def largest(self) -> float:
        """Parameters of the largest layer."""
        return max(layer.parameters for layer in self.layers)

    def stages(self, count: int, tensor: int = 1) -> tuple[StageSums, ...]:
        """The sums of `count` stages whose slowest is as fast as can be.

        Raises ValueError for fewer stages than one or more than layers.
        """
        if (count, tensor) not in self._cuts:
            ends = cut([layer.flops + layer.gradient_flops for layer in self.layers], count)
            self._cuts[count, tensor] = tuple(
                self._sums(start, end, tensor) for start, end in zip([0, *ends], ends))
        return self._cuts[count, tensor]

    def _sums(self, start: int, end: int, tensor: int) -> StageSums:
        layers = self.layers[start:end]
        inputs = [self._into(index) for index in range(start, end)]
        repeated = [layer for layer in layers if layer.recompute]
        last = layers[-1]
        return StageSums(
            layers=len(layers),
            parameters=sum(layer.parameters + (layer.tied if start else 0.0) for layer in layers) / tensor,
            forward=sum(layer.flops for layer in layers) / tensor,
            backward=sum(layer.gradient_flops for layer in layers) / tensor,
            again=sum(layer.flops for layer in repeated) / tensor,
            repeated=len(repeated),
            stash=sum(layer.stash_on(tensor) for layer in layers),
            kept=sum(into if layer.recompute else layer.stash_on(tensor) for layer, into in zip(layers, inputs)),
            largest=max((layer.stash_on(tensor) for layer in repeated), default=0.0),
            input=inputs[0] + (self.layers[start - 1].carried if start else 0.0),
            crossing=last.output + last.carried if end < len(self.layers) else 0.0,
            reduced=sum(layer.reduced for layer in layers) if tensor > 1 else 0.0)

    def _into(self, index: int) -> float:
        return self.layers[index - 1].output if index else self.sample


def cut(costs: list[float], stages: int) -> list[int]:
    """Where each of `stages` runs of layers ends, such that the most expensive one costs least.

    By bisection on that price: whether a price can be kept is found by filling stage after stage. Of the cuts
    with that price it takes the one whose earlier stages are fuller. Steps: about 60 stages log(layers).
    Raises ValueError for fewer stages than one or more than layers.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f'{len(costs)} layers can be cut into 1 to {len(costs)} stages, not {stages}')
    sums = list(accumulate(costs, initial=0.0))
    low, high = max(max(costs), sums[-1] / stages), sums[-1]
    best = _fill(sums, stages, high)
    for _ in range(60):
        middle = (low + high) / 2
        ends = _fill(sums, stages, middle)
        if ends:
            best, high = ends, middle
        else:
            low = middle
    return best


def _fill(sums: list[float], stages: int, price: float) -> list[int] | None:
    """The ends of stages that are filled up to a price, each with a layer at least; None if it is too low."""
    layers, ends, start = len(sums) - 1, [], 0
    slack = 1e-12 * sums[-1]   # sums of the same costs in another order differ by rounding
    for left in range(stages - 1, -1, -1):
        end = bisect_right(sums, sums[start] + price + slack) - 1
        start = min(max(end, start + 1), layers - left)   # the stages to come need a layer each
        ends.append(start)
    return ends if start == layers and all(
        sums[b] - sums[a] <= price + slack for a, b in zip([0, *ends], ends)) else None
