"""Where to cut a chain of layers into stages, given what each layer costs.

Two rules, both solved exactly by the same dynamic programme over

    least[p][i] = the least price of layers i, i+1, ... in p stages
                = min over j of  fold(price of layers i..j-1 as one stage, least[p-1][j])

`cut` makes the slowest stage as fast as possible (fold = max): a pipeline runs at the pace of its
slowest stage. `cut_by_variance` is GPipe's rule (fold = +, price = square of the stage's sum).
"""
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from numbers import Integral


def cut(costs: Iterable[float], partitions: int) -> list[int]:
    """Cuts layers into stages so that the largest sum of costs in a stage is least.

    Of several such cuts it takes the one whose stages' sums vary least; of those, the one whose
    numbers of layers vary least; of those, the one with fewer layers in the earlier stages. Exact:
    costs are added and compared as whole numbers, without rounding. About partitions * n * log(n)
    steps for n layers.

    Args:
        costs: what each layer costs, in any unit (seconds, bytes); finite and not negative.
        partitions: number of stages.

    Returns:
        The number of layers of each stage: `partitions` numbers of at least 1.

    Raises:
        TypeError: partitions is not a whole number.
        ValueError: fewer than one stage, more stages than layers, or a cost that is negative or
            not finite.
    """
    sums = _prefix_sums(costs, partitions)
    slowest, _ = _chain(sums, partitions, lambda i, j: sums[j] - sums[i], max)
    return _least_squares(sums, partitions, slowest)


def cut_by_variance(costs: Iterable[float], partitions: int) -> list[int]:
    """Cuts layers into stages so that the variance of the stages' sums of costs is least.

    This is GPipe's rule (Huang et al., arXiv 1811.06965, section 2.2), solved exactly: the mean of
    the stages' sums is the same for every cut, so the least variance is the least sum of squares,
    which adds up stage by stage. Ties as in `cut`. Least variance need not mean the fastest slowest
    stage: in three stages, costs 1 5 2 3 vary least as 6 | 2 | 3, where `cut` takes 1 | 5 | 5.

    Args, returns and errors as in `cut`.
    """
    sums = _prefix_sums(costs, partitions)
    return _least_squares(sums, partitions, slowest=sums[-1])


def cut_mirrored(costs: Sequence[float], devices: int) -> list[int]:
    """Cuts a model whose halves mirror each other, such as a U-Net, for the schedule 'v-shape'.

    A device holds layers of the first half and their mirror images in the second, so both ends of what
    connects them. The costliest device is as cheap as it can be. (Of an odd number of layers the last
    one has no mirror image, and is on the first device.)

    Args:
        costs: as in `cut`, of all layers.
        devices: number of devices, which hold two stages each.

    Returns:
        The number of layers of each of the 2 x devices stages.

    Raises:
        TypeError, ValueError: as `cut`, of half the layers and so many stages.
    """
    half = len(costs) // 2
    pairs = [one + other for one, other in zip(costs[:half], reversed(costs[:2 * half]))]
    if pairs and len(costs) % 2:
        pairs[0] += costs[-1]
    first, *rest = cut(pairs, devices)
    return [first, *rest, *reversed(rest), first + len(costs) % 2]


def check_partitions(layers: int, partitions: int) -> None:
    """Raises TypeError or ValueError unless `layers` layers can be cut into `partitions` stages."""
    if not isinstance(partitions, Integral):
        raise TypeError(f'partitions must be a whole number of stages, not {partitions!r}')
    if partitions < 1:
        raise ValueError(f'partitions is {partitions}: ask for at least one stage')
    if layers < partitions:
        raise ValueError(f'{layers} layers are too few for {partitions} partitions: every stage needs '
                         f'one, so ask for at most {layers}, or divide the layers into smaller ones')


def _prefix_sums(costs: Iterable[float], partitions: int) -> list[int]:
    """0, c0, c0 + c1, ... in the unit that makes every cost a whole number.

    A float is a whole number over a power of two: in that unit sums and squares are exact, and two
    cuts are equally good only if they are.
    """
    costs = list(costs)
    check_partitions(len(costs), partitions)
    for layer, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f'layer {layer} costs {cost}: give finite costs, none negative')
    exact = [Fraction(int(cost) if isinstance(cost, Integral) else float(cost)) for cost in costs]
    unit = math.lcm(*(cost.denominator for cost in exact))
    return list(accumulate((int(cost * unit) for cost in exact), initial=0))


def _least_squares(sums: list[int], partitions: int, slowest: int) -> list[int]:
    """The cut with the least sum of squares among those with no stage above `slowest`."""
    layers, total = len(sums) - 1, sums[-1]
    weight = layers ** 2 + 1   # squares of costs first: squares of layer counts only break their ties
    impossible = total ** 2 * weight + layers ** 2 + 1   # above every possible price

    def price(i: int, j: int) -> int:
        cost = sums[j] - sums[i]
        return cost * cost * weight + (j - i) ** 2 if cost <= slowest else impossible

    return _chain(sums, partitions, price, lambda one, rest: min(one + rest, impossible))[1]


def _chain(sums: list[int], partitions: int, price: Callable[[int, int], int],
           fold: Callable[[int, int], int]) -> tuple[int, list[int]]:
    """The least price of all layers in `partitions` stages, and the first cut that has it."""
    layers = len(sums) - 1
    least = [price(i, layers) for i in range(layers)]
    ends = []
    for stages in range(2, partitions + 1):
        least, end = _one_stage_more(least, layers - stages, price, fold)
        ends.append(end)
    stops = [0]
    for end in reversed(ends):
        stops.append(end[stops[-1]])
    stops.append(layers)
    return least[0], list(map(operator.sub, stops[1:], stops))


def _one_stage_more(rest: list[int], last: int, price: Callable[[int, int], int],
                    fold: Callable[[int, int], int]) -> tuple[list[int], list[int]]:
    """From the least prices of what follows, those with one stage before it, and where that ends.

    The stage may start at layer 0 .. last. The earlier it starts, the earlier its best end: true of
    the largest sum, and of sums of squares because (a + b)^2 grows faster than a^2 + b^2. So the
    middle start is solved first, and its end bounds the ends of all starts before and after it.
    Where no end is possible all prices are equal and the first end is taken, which bounds nothing.
    """
    least, end = [0] * (last + 1), [0] * (last + 1)
    spans = [(0, last, 1, last + 1)]
    while spans:
        low, high, first, final = spans.pop()
        if low <= high:
            i = (low + high) // 2
            least[i], end[i] = min((fold(price(i, j), rest[j]), j)
                                   for j in range(max(first, i + 1), final + 1))
            spans += [(low, i - 1, first, end[i]), (i + 1, high, end[i], final)]
    return least, end
