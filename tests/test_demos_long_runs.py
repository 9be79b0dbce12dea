"""The demonstrations of long runs run, test the claims that they are about, and draw what can be read."""

import pytest
from rich.console import Console

from fewgpu.workshop.demos import Show, run, summary
from tests.pictures import faults


@pytest.mark.slow
@pytest.mark.parametrize('name, claims', [('pipedream', ['C24', 'C34']), ('two-bw', ['C28', 'C29', 'C30']),
                                          ('pipemare', ['C34'])])
def test_a_demonstration_of_long_runs(name: str, claims: list[str]) -> None:
    show = Show(Console(record=True, width=120))
    assert faults(run(name, show)) == []
    assert [finding.claim for finding in show.claims] == claims
    certain = {'C24', 'C28'}   # counted, not timed or trained
    assert all(finding.confirmed for finding in show.claims if finding.claim in certain)
    assert len(summary(name)) < 110
