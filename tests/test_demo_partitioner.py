"""The demonstrations of the planners run, test their claims, and draw what can be read."""

import pytest
from rich.console import Console

from fewgpu.workshop.demos import Show, run
from tests.pictures import faults


@pytest.mark.slow
@pytest.mark.parametrize('name, claims', [('partitioner', {'C25', 'C26'}),
                                          ('depth-width', {'C31', 'C32', 'C33'})])
def test_a_demonstration_of_a_planner_runs_and_can_be_read(name, claims):
    show = Show(Console(quiet=True))
    picture = run(name, show)
    assert {finding.claim for finding in show.claims} == claims
    assert all(finding.found for finding in show.claims)
    assert faults(picture) == []
