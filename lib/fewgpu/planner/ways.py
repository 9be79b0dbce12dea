"""The terms in which every way to train is predicted: a task, its knobs, and what comes out."""

from dataclasses import dataclass, field

from fewgpu.planner.cluster import Cluster
from fewgpu.planner.model import Model, StageSums
from fewgpu.planner.way_memory import PRECISIONS, Precision


@dataclass(frozen=True)
class Task:
    """Train `model` on `cluster` with `batch` samples an update. Raises ValueError for fewer than one."""

    model: Model
    cluster: Cluster
    batch: int
    precision: Precision = PRECISIONS['mixed']

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f'a mini-batch has at least one sample, not {self.batch}')

    @property
    def rate(self) -> float:
        """FLOP/s that a device reaches."""
        return self.cluster.rate(self.precision.number == 2)


@dataclass(frozen=True)
class Knobs:
    """How one way is set. Devices are numbered tensor rank first, then replica, then stage, as Megatron does.

    schedule: '1f1b', 'gpipe', '2bw', or 'one at a time' (naive model parallelism).
    """

    replicas: int = 1
    stages: int = 1
    tensor: int = 1
    rows: int = 1                #: samples of a micro-batch
    recompute: str = 'never'     #: or 'layers', 'stages'
    schedule: str = '1f1b'
    zero: int = 0                #: ZeRO's stage, 0 to 3
    offload: bool = False        #: model states are kept by hosts or on disks

    @property
    def devices(self) -> int:
        return self.replicas * self.stages * self.tensor

    def chunks(self, batch: int) -> int:
        """Micro-batches of the replica that has most samples."""
        return -(-(-(-batch // self.replicas)) // self.rows)


@dataclass(frozen=True)
class Prediction:
    """What a way would do: seconds of a step, which `parts` add up to, and bytes on the fullest device."""

    name: str
    knobs: Knobs
    task: Task
    parts: dict[str, float]             #: seconds of a step, by what a device does or waits for
    memory: dict[str, float]            #: bytes, by what fills the fullest device
    host: float = 0.0                   #: bytes of model states that a server keeps in its memory or on its disks
    beyond: bool = False                #: the servers cannot keep them
    why: str = field(default='', compare=False)

    @property
    def step(self) -> float:
        """Seconds of an update."""
        return sum(self.parts.values())

    @property
    def samples_per_second(self) -> float:
        return self.task.batch / self.step

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.task.cluster.memory and not self.beyond

    @property
    def busy(self) -> float:
        """The share of all devices' time, the unused ones' too, that goes into forwards and backwards."""
        used = self.knobs.devices / self.task.cluster.devices
        return used * self.parts['compute'] / self.step


@dataclass(frozen=True)
class Times:
    """Seconds of one micro-batch on a stage: forward, backward, recompute; `link`: tensor ranks' exchanges
    in all."""

    forward: float
    backward: float
    again: float
    link: float

    @property
    def slot(self) -> float:
        return self.forward + self.backward + self.again


def times(task: Task, knobs: Knobs, stage: StageSums) -> Times:
    """What a micro-batch takes on a stage, each pass with its tensor-parallel all-reduces inside."""
    overhead = task.cluster.overhead
    per_flop = knobs.rows / task.rate
    again = stage.again if knobs.recompute == 'layers' else stage.forward
    repeats = stage.repeated if knobs.recompute == 'layers' else stage.layers
    exchange = 0.0
    if knobs.tensor > 1 and stage.reduced:
        # two all-reduces a layer and pass, of numbers that cannot be sent before they are there: all exposed
        exchange = task.cluster.all_reduce(knobs.rows * stage.reduced * task.precision.number, knobs.tensor)
    recomputes = knobs.recompute != 'never'
    return Times(forward=stage.forward * per_flop + stage.layers * overhead + exchange,
                 backward=stage.backward * per_flop + 2 * stage.layers * overhead + exchange,
                 again=(again * per_flop + repeats * overhead + exchange) if recomputes else 0.0,
                 link=exchange * (3 if recomputes else 2))
