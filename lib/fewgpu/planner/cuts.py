"""The dynamic programme under the planners: a chain cut into stages, machines dealt out to them.

The least price of layers i.. on exactly m machines, if the most expensive stage or cut sets the price:

    A(i, m) = min over j, r of max( T(i..j, r), link after j, A(j+1, m-r) )

This is A(j, m) of arXiv 1806.03377, section 3.3, from the other end: so a stage knows how many machines
follow it, on which hangs what it must stash. O(N^2 M^2) for N layers and M machines.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

#: (first layer, replicas, machines from this stage to the end) -> the price of the stage that ends at layer
#: first, first + 1, ...; it may break off, where no longer stage is possible.
Prices = Callable[[int, int, int], Sequence[float]]


class Cut(NamedTuple):
    """One stage: its layers, its replicas, and how many machines there are from it to the end."""

    first: int
    last: int
    replicas: int
    machines: int


class Cuts:
    """The best ways to cut `layers` layers, for any start and up to so many machines.

    links: the price of a cut after layer 0, 1, ....
    """

    def __init__(self, layers: int, machines: int, prices: Prices, links: Sequence[float]) -> None:
        self._layers, self._prices = layers, prices
        # least[m][i]: of layers i.. on exactly m machines. tails[m][j]: of what follows a stage up to j.
        self._least = [[inf] * layers for _ in range(machines + 1)]
        self._tails = [[inf] * layers for _ in range(machines + 1)]
        self._tails[0][-1] = 0.0
        for first in reversed(range(layers)):
            tails = [tail[first:] for tail in self._tails]
            for m in range(1, machines + 1):
                least = min(min(map(max, prices(first, r, m), tails[m - r]), default=inf)
                            for r in range(1, m + 1))
                self._least[m][first] = least
                if first:
                    self._tails[m][first - 1] = max(links[first - 1], least)

    def best(self, first: int, use_all: bool) -> tuple[float, int]:
        """The least price of layers first.., and on how many machines; inf if there is no way."""
        most = len(self._least) - 1
        return min((self._least[m][first], m) for m in range(most if use_all else 1, most + 1))

    def stages(self, first: int, m: int) -> Iterator[Cut]:
        """One of the best ways for layers first.. on exactly m machines; there must be one.

        From the front: of equally good ones the one with the longest next stage.
        """
        bound = self._least[m][first]
        while first < self._layers:
            last, _, r = max((first + longer, -price, r) for r in range(1, m + 1)
                             for longer, (price, rest) in enumerate(zip(self._prices(first, r, m),
                                                                        self._tails[m - r][first:]))
                             if max(price, rest) <= bound)
            yield Cut(first, last, r, m)
            first, m = last + 1, m - r
