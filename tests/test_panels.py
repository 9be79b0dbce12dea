"""What the panels of lessons draw can be read wherever the sliders stand, and says what is so."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fewgpu.pipemare import stability_limit
from fewgpu.workshop.panels import staleness
from tests.pictures import faults


@given(st.integers(0, 8), st.floats(0.3, 1.7).filter(lambda share: abs(share - 1) > 0.05))
def test_a_late_weight_swings_as_the_roots_of_its_rule_say(delay: int, share: float) -> None:
    """w(t+1) = w(t) - rate w(t-d): swings die away if all roots of z^(d+1) - z^d + rate are within the unit circle."""
    rate = share * stability_limit(1.0, delay)
    polynomial = np.zeros(delay + 2)
    polynomial[0] += 1
    polynomial[1] -= 1
    polynomial[-1] += rate
    dies = max(abs(np.roots(polynomial))) < 1
    w = np.abs(staleness.descent(delay, rate, updates=600))
    assert dies == (share < 1) == (w[-100:].max() < w[:100].max())
    said = staleness.draw(delay, rate)[1]
    assert ('die away' in said) == dies


@pytest.mark.parametrize('delay', (0, 1))   # its limits, 2 and 1, are rates that can be given
def test_at_the_limit_swings_stay_as_they_are(delay: int) -> None:
    w = staleness.descent(delay, rate := 2.0 - delay, updates=600)
    assert min(w[-12:]) == -1 and max(w[-12:]) == 1
    assert staleness.draw(delay, rate)[1].endswith('just that, so the swings neither grow nor die away.')


@pytest.mark.parametrize('delay, rate', [(0, 0.05), (0, 1.5), (3, 0.4), (8, 1.5)])
def test_the_picture_of_staleness_can_be_read(delay: int, rate: float) -> None:
    assert not faults(staleness.draw(delay, rate)[0])
