"""The demonstration of the planner runs, judges the claims that it is about, and its picture can be read."""

import pytest
from rich.console import Console

from fewgpu.workshop.demos import Show, run, summary
from fewgpu.workshop.demos import plan as demo
from fewgpu.workshop.demos.plan import DATA, WAYS
from tests.pictures import faults


@pytest.mark.slow
def test_the_demo_runs_and_shows_a_prediction_and_a_measurement_of_every_way():
    console = Console(record=True, width=200)
    show = Show(console)
    figure = run('plan', show)
    said = console.export_text()
    assert {finding.claim for finding in show.claims} == {'C23', 'C33', 'C46'}
    assert faults(figure) == []
    for way in (*WAYS, DATA):
        assert way.name in said and any(line.startswith(f'{way.name}: predicted') for line in figure.said)


def test_the_demo_predicts_each_way_for_the_devices_that_it_runs_on():
    assert all(way.setting.devices == way.devices and way.setting.chunks(demo.ROWS * demo.CHUNKS) >= 1
               for way in (*WAYS, DATA))
    assert summary('plan')
