"""What a few noisy rounds say: medians, paired ratios, and how far a median can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

CONFIDENCE = 0.9


@dataclass(frozen=True)
class Summary:
    """The median of some values, an interval for it that holds with probability `coverage`, and
    their range."""

    median: float
    low: float
    high: float
    coverage: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = CONFIDENCE) -> 'Summary':
        """Raises ValueError if there are no values."""
        if not values:
            raise ValueError('no values to summarise: measure at least one round')
        ranked = sorted(values)
        k, coverage = interval_rank(len(ranked), confidence)
        return cls(median(ranked), ranked[k - 1], ranked[-k], coverage, ranked[0], ranked[-1])


def interval_rank(n: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """(k, coverage): from the k-th smallest to the k-th largest of n values, the median of their
    distribution lies with probability `coverage`, whatever the distribution.

    It misses only if fewer than k values fell on one side of it, and each side is as likely as the
    other: coverage = 1 - 2 P(Binomial(n, 1/2) < k). The largest k is taken that reaches
    `confidence`; with very few values none does, and k = 1 says what they can.
    (David and Nagaraja, Order Statistics, 3rd edition, section 7.1)
    """
    def coverage(k: int) -> float:
        return 1.0 - 2.0 * sum(comb(n, j) for j in range(k)) / 2**n

    k = 1
    while 2 * (k + 1) <= n and coverage(k + 1) >= confidence:
        k += 1
    return k, coverage(k)


def paired_ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """values[r] / base[r] for every round r: what slows a whole round down cancels out.

    Raises ValueError if they are not of the same rounds.
    """
    if len(values) != len(base):
        raise ValueError(f'{len(values)} and {len(base)} rounds cannot be paired')
    return [value / reference for value, reference in zip(values, base)]
