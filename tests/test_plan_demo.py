"""The demonstration of the planner asks what can be run, and its picture can be read."""

from fewgpu.workshop.demos import summary
from fewgpu.workshop.demos import plan as demo
from fewgpu.workshop.measured import plan as ways
from fewgpu.workshop.measured.plan import DATA, WAYS
from tests.pictures import faults


def test_the_demo_predicts_each_way_for_the_devices_that_it_runs_on():
    assert all(way.knobs.devices == way.devices and way.knobs.chunks(ways.ROWS * ways.CHUNKS) >= 1
               for way in (*WAYS, DATA))
    assert summary('plan')


def test_its_picture_can_be_read():
    profile = ways.profile_of([[(0.008, 0.016)] * ways.LAYERS])
    predicted = {way.name: ways.predict(way, profile, ways.bandwidth_of(way, profile)) for way in (*WAYS, DATA)}
    figure = demo._picture({name: ways.Result(one, 0.7 * one.samples_per_second, 10**7)
                            for name, one in predicted.items()})
    assert faults(figure) == []
