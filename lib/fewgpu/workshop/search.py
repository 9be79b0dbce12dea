"""The largest size that fits, from few measurements: extrapolate, then look at both sides."""

from collections.abc import Callable, Sequence

Measure = Callable[[int], Sequence[float] | None]

_GROWTH = 8   # times as large as the largest that fits, at most: small sizes may lie on another line


def largest(measure: Measure, limit: float, *, most: int, start: int = 1, step: int = 1) -> int:
    """The largest size from 1 to `most` at which every peak is within `limit`; 0 if there is none.

    `measure(size)` gives the peaks, one a device (always the same number of them), or None for a
    size that did not get through at all. No peak may fall as the size grows; whatever their shape,
    the answer is right, for it and the size after it have been measured. The straighter they are,
    the fewer measurements are made: on lines about log8(answer / start) + 4, at worst about twice
    as many as a bisection would make.

    `start` is the first size to measure; a guess is rounded down to a multiple of `step`, for
    curves that are stairs on a slope.
    """
    return _Search(measure, limit, most, start, step).run()


class _Search:
    def __init__(self, measure: Measure, limit: float, most: int, start: int, step: int) -> None:
        self._measure, self._limit, self._step, self._most = measure, limit, step, most
        self._fits, self._fails = 0, most + 1   # the answer is at least, and less than
        self._peaks: dict[int, Sequence[float]] = {}   # of the sizes that fit
        self._start = min(start, most)

    def run(self) -> int:
        self._try(self._start)
        self._grow()
        self._narrow()
        return self._fits

    def _try(self, size: int) -> None:
        peaks = self._measure(size)
        if peaks is None or max(peaks) > self._limit:
            self._fails = size
        else:
            self._fits, self._peaks[size] = size, peaks

    def _grow(self) -> None:
        """Until a size fails: guess, but go further each time that a guess has fallen short."""
        stride = 1
        while self._fits < self._most < self._fails:
            guess = max(self._predicted(), self._fits + stride)
            stride = 2 * stride if guess == self._fits + stride else 1
            self._try(min(guess, _GROWTH * self._fits, self._most))

    def _narrow(self) -> None:
        """Between what fits and what fails: guess, but see that two guesses halve the range."""
        halve = False
        while self._fails - self._fits > 1:
            width = self._fails - self._fits
            guess = self._predicted()
            if halve or guess >= self._fails:
                guess = self._fits + width // 2
            self._try(max(guess, self._fits + 1))
            halve = not halve and 2 * (self._fails - self._fits) > width

    def _predicted(self) -> int:
        """Where the first of the peaks reaches the limit, each on a line through two sizes that
        fit: the largest of them, and the largest of those at most half of it."""
        high = self._fits
        low = max((size for size in self._peaks if size <= high // 2), default=high)
        if low == high:
            return 4 * high or self._fails
        rooms = []
        for below, above in zip(self._peaks[low], self._peaks[high]):
            if above > below:
                rooms.append((self._limit - above) * (high - low) / (above - below))
        if not rooms:
            return 4 * high
        return max(int(min(high + min(rooms), self._most)) // self._step * self._step, high)
