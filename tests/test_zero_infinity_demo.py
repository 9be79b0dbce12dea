"""The demonstration of ZeRO-Infinity runs, finds something about its claims, and its picture can be read."""

import pytest
from rich.console import Console

from fewgpu.workshop.demos import Show, run, summary
from tests.pictures import faults


@pytest.mark.slow
def test_runs_and_can_be_read():
    show = Show(Console(width=100))
    figure = run('zero-infinity', show)
    found = {finding.claim: finding for finding in show.claims}
    assert [*found] == ['C40', 'C41', 'C42', 'C43', 'C44']
    assert found['C40'].confirmed and found['C43'].confirmed   # which no clock decides
    assert faults(figure) == []
    assert summary('zero-infinity')
