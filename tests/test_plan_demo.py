"""The demonstration of the planner runs, judges the claims that it is about, and its picture can be read."""


from fewgpu.workshop.demos import summary
from fewgpu.workshop.demos import plan as demo
from fewgpu.workshop.demos.plan import DATA, WAYS
from tests.pictures import faults


def test_the_demo_predicts_each_way_for_the_devices_that_it_runs_on():
    assert all(way.setting.devices == way.devices and way.setting.chunks(demo.ROWS * demo.CHUNKS) >= 1
               for way in (*WAYS, DATA))
    assert summary('plan')


def test_its_picture_can_be_read():
    profile = demo._profile([[(0.008, 0.016)] * demo.LAYERS])
    predicted = {way.name: demo._predict(way, profile, demo._bandwidth(way, profile)) for way in (*WAYS, DATA)}
    figure = demo._picture({name: demo.Result(one, 0.7 * one.samples_per_second, 10**7)
                            for name, one in predicted.items()})
    assert faults(figure) == []
