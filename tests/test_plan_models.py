"""What the planner knows about networks agrees with torch's own counts, and with published closed forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fewgpu import balance
from fewgpu.models import gpt, resnet
from fewgpu.planner.known import KNOWN, bert_large, known, transformer
from fewgpu.planner.model import Sizes, Model, cut
from fewgpu.planner.own import load, measured, own


def conv(into, out, kernel, stride=1, padding=None, norm=False):
    layer = nn.Conv2d(into, out, kernel, stride, kernel // 2 if padding is None else padding, bias=not norm)
    return nn.Sequential(layer, nn.BatchNorm2d(out)) if norm else layer


class Bottleneck(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        self.path = nn.Sequential(conv(into, width, 1, norm=True), nn.ReLU(), conv(width, width, 3, stride, norm=True),
                                  nn.ReLU(), conv(width, 4 * width, 1, norm=True))
        self.short = conv(into, 4 * width, 1, stride, norm=True) if into != 4 * width else nn.Identity()

    def forward(self, x):
        return torch.relu(self.path(x) + self.short(x))


def resnet50():
    layers, into = [conv(3, 64, 7, 2, norm=True), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(count):
            layers.append(Bottleneck(into, width, stride if k == 0 else 1))
            into = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)), (3, 224, 224)


def vgg16():
    layers, into = [], 3
    for what in (64, 64, 'M', 128, 128, 'M', 256, 256, 256, 'M', 512, 512, 512, 'M', 512, 512, 512, 'M'):
        layers += [nn.MaxPool2d(2)] if what == 'M' else [conv(into, what, 3), nn.ReLU()]
        into = into if what == 'M' else what
    head = nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
    return nn.Sequential(*layers, nn.Flatten(), *head), (3, 224, 224)


def alexnet():
    return nn.Sequential(
        conv(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), conv(64, 192, 5), nn.ReLU(), nn.MaxPool2d(3, 2),
        conv(192, 384, 3), nn.ReLU(), conv(384, 256, 3), nn.ReLU(), conv(256, 256, 3), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)), (
        3, 224, 224)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        def pair(into, out):
            return nn.Sequential(conv(into, out, 3), nn.ReLU(), conv(out, out, 3), nn.ReLU())
        widths = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(pair(into, out) for into, out in zip([1, *widths], widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[3::-1])
        self.up = nn.ModuleList(pair(2 * w, w) for w in widths[3::-1])
        self.classes = conv(64, 2, 1)

    def forward(self, x):
        skips = []
        for k, down in enumerate(self.down):
            x = down(nn.functional.max_pool2d(x, 2) if k else x)
            skips.append(x)
        for grow, up, skip in zip(self.grow, self.up, skips[3::-1]):
            x = up(torch.cat([skip, grow(x)], 1))
        return self.classes(x)


NETWORKS = {'resnet50': resnet50, 'vgg16': vgg16, 'alexnet': alexnet, 'unet': lambda: (UNet(), (1, 512, 512))}


@pytest.mark.parametrize('name', NETWORKS)
def test_parameters_and_flops_are_those_that_torch_counts(name):
    with torch.device('meta'), FlopCounterMode(display=False) as counter:
        network, shape = NETWORKS[name]()
        network(torch.empty(1, *shape))
    assert known(name).parameters == sum(parameter.numel() for parameter in network.parameters())
    assert known(name).flops == counter.get_total_flops()


@pytest.mark.parametrize('name, millions', [('resnet50', 25.6), ('vgg16', 138), ('alexnet', 61), ('bert-large', 335),
                                            ('gpt-2.2B', 2200), ('gpt-3.8B', 3800), ('gpt-175B', 175000)])
def test_parameters_are_those_of_the_name(name, millions):
    assert known(name).parameters == pytest.approx(millions * 1e6, rel=0.012)


def test_bert_large_has_the_parameters_of_its_encoder():
    with torch.device('meta'):
        parts = [*(nn.Embedding(count, 1024) for count in (30522, 512, 2)), nn.LayerNorm(1024), nn.Linear(1024, 1024),
                 *(nn.TransformerEncoderLayer(1024, 16, 4096) for _ in range(24))]
    assert bert_large().parameters == sum(p.numel() for part in parts for p in part.parameters())


sizes = st.tuples(st.integers(1, 20), st.integers(1, 16).map(lambda k: 64 * k), st.integers(8, 2048),
                  st.integers(100, 60000))


@given(sizes)
def test_a_gpt_has_the_parameters_and_flops_of_megatrons_closed_forms(size):
    l, h, s, V = size
    model = transformer('gpt', l, h, 8, s, V, batch=1)
    P = 12 * l * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * l * h))
    F = 96 * s * l * h**2 * (1 + s / (6 * h) + V / (16 * l * h))   # an iteration of one sample, with recompute
    stage, = model.stages(1)
    assert model.parameters == pytest.approx(P)
    assert stage.forward + stage.backward + stage.again == pytest.approx(F)


def test_own_counts_a_gpt_as_the_closed_form_does():
    l, h, s, V = 3, 64, 32, 100
    mine = own(gpt(l, h, 4, vocabulary=V, longest=s), torch.zeros(2, s, dtype=torch.int64))
    assert mine.flops == transformer('gpt', l, h, 4, s, V, batch=1).flops
    assert [layer.parameters for layer in mine.layers[1:-2]] == [12 * h**2 + 13 * h] * l


def test_own_leaves_the_model_as_it_was_and_counts_every_layer():
    network, x = resnet(18), torch.randn(2, 1, 28, 28)
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    mine = own(network, x)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not network.training and all(parameter.grad is None for parameter in network.parameters())
    assert len(mine.layers) == len(network)
    assert mine.parameters == sum(parameter.numel() for parameter in network.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    assert mine.flops == counter.get_total_flops() / 2
    assert mine.layers[-1].output == 10 and mine.sample == 784


def test_measured_has_seconds_in_place_of_flops():
    model = measured(nn.Sequential(nn.Linear(50, 60), nn.Tanh()), torch.randn(8, 50), timeout=0.01)
    assert all(layer.flops > 0 and layer.gradient_flops > 0 for layer in model.layers)
    assert model.layers[0].parameters == 51 * 60


@pytest.mark.parametrize('text, said', [
    ('', 'there is no function make'), ('def make(): return 3', 'returned int'),
    ('def make(): return 1 / 0', 'ZeroDivision'), ('x = ', 'SyntaxError'),
    ('import torch\ndef make(): return torch.nn.Sequential(torch.nn.Linear(3, 4)), torch.ones(2, 5)', 'does not run')])
def test_a_file_that_makes_no_model_is_told_so(tmp_path, text, said):
    path = tmp_path / 'nets.py'
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        load(f'{path}:make')


def test_a_file_that_is_not_there_is_told_so():
    with pytest.raises(ValueError, match='FILE.py:FUNCTION'):
        load('nowhere.py:make')


def test_names_that_are_not_known_are_listed():
    with pytest.raises(ValueError, match=', '.join(KNOWN)):
        known('gpt-9')


@settings(max_examples=200)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.data())
def test_the_slowest_stage_is_as_fast_as_the_exact_cut_makes_it(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    ends = cut([float(cost) for cost in costs], stages)
    mine = [sum(costs[start:end]) for start, end in zip([0, *ends], ends)]
    assert len(ends) == stages and ends[-1] == len(costs) and all(a < b for a, b in zip([0, *ends], ends))
    layers = iter(costs)
    exact = [sum(next(layers) for _ in range(size)) for size in balance.cut(costs, stages)]
    assert max(mine) == max(exact)


@given(st.integers(1, 10), st.data())
def test_stages_share_out_what_the_model_has(count, data):
    numbers = st.integers(0, 1000)
    model = Model('random', tuple(
        Sizes(str(k), data.draw(numbers), data.draw(numbers), data.draw(numbers), data.draw(numbers))
        for k in range(count)), 7.0)
    stages = model.stages(data.draw(st.integers(1, count)))
    assert sum(stage.parameters for stage in stages) == model.parameters
    assert sum(stage.forward for stage in stages) == model.flops
    assert sum(stage.stash for stage in stages) == sum(layer.stash for layer in model.layers)
    assert stages[0].input == model.sample and stages[-1].crossing == 0
    assert [stage.crossing for stage in stages[:-1]] == [stage.input for stage in stages[1:]]


def test_unet_skips_cross_every_cut_between_their_ends():
    """Encoder outputs of level k cross from behind `down k` to before `up k`."""
    model = known('unet')
    skips = [64 * 512**2, 128 * 256**2, 256 * 128**2, 512 * 64**2]
    assert [layer.carried for layer in model.layers] == [sum(skips[:k]) for k in (1, 2, 3, 4, 4, 3, 2, 1, 0, 0)]


def test_a_model_of_no_rows_or_with_tied_weights_is_refused():
    layer = torch.nn.Linear(4, 4)
    tied = torch.nn.Linear(4, 4)
    tied.weight = layer.weight
    with pytest.raises(ValueError, match='no rows'):
        own(torch.nn.Sequential(layer), torch.ones(0, 4))
    with pytest.raises(ValueError, match='duplicate parameters'):
        own(torch.nn.Sequential(layer, tied), torch.ones(2, 4))
