"""What a lesson finds on its machine, and training steps that are measured in a cell."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fewgpu import GPipe, ModelParallel, get_devices
from fewgpu.workshop import here as module
from fewgpu.workshop.here import Here
from fewgpu.workshop.measure import gradient_of, measure


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize('efficiency, cores, steady', [(0.95, 2, True), (0.6, 2, False), (0.95, 1, False)])
def test_times_are_trusted_where_each_device_has_a_core_of_its_own(monkeypatch, efficiency, cores, steady):
    monkeypatch.setattr(module, 'two_core_efficiency', lambda n: efficiency)
    monkeypatch.setattr(module, 'cores', lambda: cores)
    monkeypatch.setattr(module, 'get_devices', lambda n: get_devices(n, kind='cpu'))
    here = Here(2)
    assert [device.name for device in here.devices] == ['CPU 0', 'CPU 1'] and not here.on_gpus
    assert (here.steady, here.doubt == '') == (steady, steady)
    assert f'{efficiency:.0%}' in repr(here) and f'{cores} cores' in repr(here)


def test_a_measured_pipeline_learns_what_the_plain_model_learns():
    x, y = torch.randn(12, 1, 4, 4), torch.randint(10, (12,))
    devices = get_devices(2, kind='cpu')
    plain, piped, naive = linear(), linear(), linear()
    shown = [measure(plain, x, y, devices, steps=4),
             measure(GPipe(piped, [2, 2], devices=devices, chunks=3), x, y, devices, steps=4),
             measure(ModelParallel(naive, [2, 2], devices=devices), x, y, devices, steps=4)]
    for model in (piped, naive):
        for one, other in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(one, other)
    assert not torch.equal(plain[1].weight, linear()[1].weight)
    assert [len(one.memory) for one in shown] == [1, 2, 2] and all(one.speed > 0 for one in shown)
    assert shown[0].timeline is None and len(shown[1].timeline.rows) == 2
    assert repr(shown[0]).startswith(f'{shown[0].speed:.1f} samples/sec\nCPU 0: allocated')


@pytest.mark.parametrize('names', [['GPU 0', 'GPU 1'], ['GPU 0', 'GPU 0']])
def test_of_gpus_no_efficiency_is_claimed_and_a_shared_one_is_named(monkeypatch, names):
    monkeypatch.setattr(module, 'get_devices', lambda n: [SimpleNamespace(name=name, is_virtual=False) for name in names])
    here = Here(2)
    shared = len({*names}) == 1
    assert here.on_gpus and here.efficiency is None and '%' not in repr(here)
    assert (here.shared, here.steady) == (shared, not shared) and ('share a GPU' in repr(here)) == shared


def test_gradients_come_in_the_order_of_the_parameters():
    model = linear()
    model[1].bias.requires_grad_(False)
    model(torch.randn(3, 16)).sum().backward()
    parts = [parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad]
    assert torch.equal(gradient_of(model), torch.cat(parts))
