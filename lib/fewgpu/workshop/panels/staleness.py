"""How late a gradient may be: one weight in a bowl, whose gradient comes some updates late."""

import math

from matplotlib.figure import Figure

from fewgpu import plot
from fewgpu.pipemare import stability_limit

UPDATES = 60
FAR = 10.0   # from the bottom; it began at 1


def descent(delay: int, rate: float, updates: int = UPDATES) -> list[float]:
    """The weight after each update, from 1, of the loss w^2 / 2: w(t+1) = w(t) - rate * w(t - delay). Before
    the beginning it was 1."""
    w = [1.0] * (delay + 1)
    for _ in range(updates):
        w.append(w[-1] - rate * w[-1 - delay])
    return w[delay:]


def draw(delay: int, rate: float) -> tuple[Figure, str]:
    """Where the weight goes, and on which side of the limit the learning rate is."""
    limit = stability_limit(1.0, delay)
    w = [value if abs(value) <= FAR else math.nan for value in descent(delay, rate)]
    side = 'above it, so the swings grow' if rate > limit else 'below it, so the swings die away'
    if math.isclose(rate, limit):
        side = 'just that, so the swings neither grow nor die away'
    figure = plot.Picture(figsize=(9.0, 3.4), layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    plot.lines({f'{delay} late': (range(len(w)), w)}, left, title='The weight; the loss is lowest at 0', x='updates')
    delays = range(9)
    plot.lines({'limit': (delays, [stability_limit(1.0, each) for each in delays]),
                'here': ([delay], [rate])}, right, title='Learning rate', x='delay, in updates')
    return figure, f'The limit for {delay} update{"s" * (delay != 1)} of delay is {limit:.3f}; {rate:g} is {side}.'
