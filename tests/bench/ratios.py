"""fewgpu's speed over everybody else's and over the bound, round by round, and what we aim at."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.stats import CONFIDENCE, Summary, paired_ratios
from tests.bench.work import CHECKPOINTS

PLAIN, ALONE = 'plain (one core) never', 'one stage at a time'
FEWGPU, TORCHGPIPE, PIPELINING = 'fewgpu', 'torchgpipe', 'torch.distributed.pipelining'


@dataclass(frozen=True)
class Ratio:
    """A speed divided by another of the same round, and what we want of it (None: nothing)."""

    what: str
    checkpoint: str
    aim: float | None
    summary: Summary

    @property
    def verdict(self) -> str:
        """Whether the interval of the median lies on one side of the aim."""
        if self.aim is None:
            return ''
        if self.summary.coverage < CONFIDENCE:
            return 'too few rounds'
        if self.summary.low >= self.aim:
            return 'met'
        return 'fell short' if self.summary.high < self.aim else 'undecided'


def seconds(found: dict, name: str) -> list[float]:
    """Of a contestant's step, every round."""
    return [measured['seconds'][name] for measured in found['rounds']]


def bound(found: dict, mode: str) -> list[float]:
    """Seconds that the step should take in every round: the simulated makespan, on cores that are
    worth less when all are busy."""
    return [measured['bound'][mode]['makespan'] / measured['efficiency']
            for measured in found['rounds']]


def ratios(found: dict) -> Iterator[Ratio]:
    """fewgpu's speed over everybody's, without and with recompute."""
    for mode in CHECKPOINTS:
        own = seconds(found, f'{FEWGPU} {mode}')
        for what, aim, other in (
                (TORCHGPIPE, 1.5, seconds(found, f'{TORCHGPIPE} {mode}')),
                (PIPELINING, 1.0, seconds(found, f'{PIPELINING} {mode}')),
                ('bound x efficiency', 0.95, bound(found, mode)),
                ('plain on one core', None, seconds(found, PLAIN))):
            yield Ratio(f'{FEWGPU} / {what}', mode, aim, Summary.of(paired_ratios(other, own)))
