"""What operations cost, in seconds and bytes: what a schedule is simulated with. Imports no torch."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Real
from statistics import median

from fewgpu.trace import Timeline

PerStage = float | Sequence[float | None]


@dataclass(frozen=True)
class Costs:
    """What operations cost. Each is one number for all stages, or a list with one a stage (for
    `message`: one for each boundary between two stages)."""

    F: PerStage = 1.0           #: seconds of a forward
    B: PerStage = 2.0           #: seconds of a backward
    I: PerStage = 1.0           #: seconds of its input-gradient half
    W: PerStage = 1.0           #: seconds of its weight-gradient half
    R: PerStage | None = None   #: seconds of a recompute; None: as the forward
    U: PerStage = 0.0           #: seconds of an update
    latency: float = 0.0        #: seconds that an empty message takes from device to device
    bandwidth: float = inf      #: bytes/s from one device to another; transfers queue for it
    message: PerStage = 0.0     #: bytes of an activation or gradient between stages s and s + 1
    share: PerStage = 0.0       #: bytes of a stage's gradients, which its replicas send to each other
    stash: PerStage = 0         #: bytes that a forward with a graph keeps for its backward
    input: PerStage = 0         #: bytes that it keeps instead if it is to be recomputed
    for_W: PerStage = 0         #: bytes of the stash that are left after I, for W
    weights: PerStage = 0       #: bytes of one weight version
    skips: Mapping[str, float] = field(default_factory=dict)   #: bytes of each skip by its name (else none)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            each = (values.values() if isinstance(values, Mapping) else values
                    if isinstance(values, Sequence) and not isinstance(values, str) else [values])
            for value in each:
                if value is not None and not (isinstance(value, Real) and value >= 0):
                    raise ValueError(f'a cost is a number of at least 0, not {name}={values!r}')
        if not self.bandwidth > 0:
            raise ValueError('bandwidth is above 0 bytes/s; a link without limit has math.inf')

    @classmethod
    def measured(cls, timeline: Timeline) -> 'Costs':
        """The median seconds of every kind and stage in a real run; messages and bytes stay 0.

        What did not run on a stage has no cost there: to simulate it raises ValueError. Only a
        recompute takes, then, what a forward took.
        """
        seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        for row in timeline.rows:
            for span in row:
                seconds[span.op.kind, span.op.stage].append(span.seconds)
        stages = range(1 + max((stage for _, stage in seconds), default=0))
        costs = {kind: [median(seconds[kind, stage]) if (kind, stage) in seconds else None
                        for stage in stages] for kind in 'FBIWRU'}
        costs['R'] = [costs['F'][s] if costs['R'][s] is None else costs['R'][s] for s in stages]
        return cls(**costs)

    def of(self, what: str, stage: int) -> float:
        """`what` (the name of a field) of a stage. Raises ValueError if it is not known."""
        values = self.F if what == 'R' and self.R is None else getattr(self, what)
        value = values[stage] if isinstance(values, Sequence) and stage < len(values) else values
        if not isinstance(value, Real):
            raise ValueError(f'no cost is known of {what} on stage {stage}: give Costs one')
        return value
