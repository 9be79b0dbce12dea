"""How much the clocks of ranks differ, from the messages that they sent to each other.

A message leaves before it comes. Clock c shows t + offset(c) at time t, so a message from a to b with stamps
`sent` and `came` says

    offset(b) - offset(a)  <=  came - sent              (which is the difference, plus what it was on its way)

The quickest message of all bounds best; one the other way bounds from below. Messages by way of third ranks bound, too:
the tightest bound from a to b is a shortest path (Floyd and Warshall), D(a, b). As offsets against the reference,
rank r, both D(r, i) and -D(i, r) satisfy every bound, and so does their mean, as every message comes after it left
by it. The true offset is no farther from it than (D(r, i) + D(i, r)) / 2. (Between two ranks: the minimum-delay
estimate of NTP, RFC 5905, section 8, with the best message each way.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Clocks:
    """What the clock of each rank shows more than that of the first one, in seconds."""

    offsets: tuple[float, ...]
    uncertainties: tuple[float, ...]   #: the true offset is within so much of it; inf if nothing bounds it
    drift: float = 0.0                 #: so much bounds contradict each other: clocks that run at different speeds

    @property
    def uncertainty(self) -> float:
        """The largest of those that are known."""
        return max((one for one in self.uncertainties if one < np.inf), default=0.0)

    @property
    def unknown(self) -> list[int]:
        """Which have no messages in both directions with the first one, directly or by way of others."""
        return [place for place, one in enumerate(self.uncertainties) if one == np.inf]


def least_delays(sent: Sequence[tuple[int, float]], came: Sequence[tuple[int, float]]) -> float:
    """The least that `came` is above `sent` among messages of the same number; inf if there is none."""
    left = dict(sent)
    return min((seconds - left[number] for number, seconds in came if number in left), default=np.inf)


def align(bounds: np.ndarray, starts: Sequence[float]) -> Clocks:
    """The clocks of n ranks, from the least delay that each direction showed.

    `bounds[a, b]` is the least (came on b - sent on a), each by its own clock, inf without a message. A rank that
    messages reach in one direction only is put where the quickest took no time; one without any is put so that its
    first start in `starts` (by its own clock) is the first one's.
    """
    bounds = np.array(bounds, dtype=float)
    np.fill_diagonal(bounds, 0.0)
    paths, drift = _shortest(bounds), 0.0
    rounding = 1e-12 * (1.0 + np.abs(bounds[np.isfinite(bounds)]).max(initial=0.0))
    while paths.diagonal().min() < -rounding:   # round some circle no time passes, or less: let all take longer
        drift = max(2 * drift, -(bounds + bounds.T).min() / 2, rounding)
        longer = bounds + drift
        np.fill_diagonal(longer, 0.0)
        paths = _shortest(longer)
    upper, lower = paths[0], -paths[:, 0]
    known = np.isfinite(upper) & np.isfinite(lower)
    offsets = np.where(known, (upper + np.where(known, lower, 0.0)) / 2, 0.0)
    for place in np.flatnonzero(~known):
        most = (offsets[known] + paths[known, place]).min()
        least = (offsets[known] - paths[place, known]).max()
        offsets[place] = (most if np.isfinite(most) else least if np.isfinite(least) else starts[place] - starts[0])
    unsure = np.where(known, np.maximum(upper - np.where(known, lower, 0.0), 0.0) / 2, np.inf)
    return Clocks(tuple(offsets.tolist()), tuple(unsure.tolist()), float(drift))


def _shortest(bounds: np.ndarray) -> np.ndarray:
    """The lengths of the shortest paths between all pairs (Floyd and Warshall)."""
    paths = bounds.copy()
    for through in range(len(paths)):
        np.minimum(paths, paths[:, through, None] + paths[None, through, :], out=paths)
    return paths


def bounds_of(stamps: Sequence[Mapping[int, Mapping[str, Sequence[tuple[int, float]]]]], ranks: Sequence[int],
              meetings: Sequence[tuple[Sequence[int], Mapping[int, Mapping[int, tuple[float, float]]]]] = ()
              ) -> np.ndarray:
    """The least delays between ranks, by place in `ranks`.

    `stamps[place][peer]` are those of the rank at that place with rank `peer`: 'sent' and 'came'. Of a meeting, from
    whose call nobody returns before all have called it, `meetings` has the ranks and for each {number: (start, end)}:
    who started it "sent" a message then, and everybody had "received" it at the end.
    """
    bounds = np.full((len(ranks), len(ranks)), np.inf)
    place_of = {rank: place for place, rank in enumerate(ranks)}
    for place, own in enumerate(stamps):
        for peer, both in own.items():
            other = place_of.get(peer)
            if other is not None and (theirs := stamps[other].get(ranks[place])):
                bounds[place, other] = least_delays(both['sent'], theirs['came'])
    for members, times in meetings:
        for number in set.intersection(*(set(times[rank]) for rank in members)):
            starts = np.array([times[rank][number][0] for rank in members])
            ends = np.array([times[rank][number][1] for rank in members])
            places = [place_of[rank] for rank in members]
            grid = np.ix_(places, places)
            bounds[grid] = np.minimum(bounds[grid], ends[None, :] - starts[:, None])
    return bounds
