"""A profile leaves no trace, whatever the layers are like; and its saved bytes add up to the model's."""
import random

import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fewgpu.balance import balance_by_size, balance_by_time, profile

WIDTH, FLOAT = 4, 4   # features of every layer; bytes


class Noise(nn.Module):
    """Draws from every random stream there is, and counts how often in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer('calls', torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x + torch.rand_like(x) * random.random()


class Nest(nn.Module):
    def forward(self, x):
        return {'kept': (x, None, 3), 'new': [x * 2, torch.arange(len(x))]}


class Unnest(nn.Module):
    def forward(self, nest):
        (x, _, factor), (y, rows) = nest['kept'], nest['new']
        return x * y * factor + rows[:, None]


KINDS = {
    'linear': lambda: [nn.Linear(WIDTH, WIDTH)],
    'frozen': lambda: [nn.Linear(WIDTH, WIDTH).requires_grad_(False)],
    'weight norm': lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))],
    'batch norm': lambda: [nn.BatchNorm1d(WIDTH)],
    'dropout': lambda: [nn.Dropout(0.5)],
    'in-place relu': lambda: [nn.ReLU(inplace=True)],
    'in-place dropout': lambda: [nn.Dropout(0.5, inplace=True)],
    'gelu': lambda: [nn.GELU()],
    'noise': lambda: [Noise()],
    'nest': lambda: [Nest(), Unnest()],
    'identity': lambda: [nn.Identity()],
}


@st.composite
def networks(draw):
    """(an nn.Sequential of small layers of all kinds, a sample)."""
    layers = [layer for kind in draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5))
              for layer in KINDS[kind]()]
    rows = draw(st.integers(2, 5))
    if draw(st.booleans()):
        return nn.Sequential(nn.Embedding(7, WIDTH), *layers), torch.randint(7, (rows,))
    sample = torch.randn(rows, WIDTH, requires_grad=draw(st.booleans()))
    if draw(st.booleans()):
        new = [torch.ones(rows, WIDTH), torch.arange(rows)]
        return nn.Sequential(Unnest(), *layers), {'kept': (sample, None, 3), 'new': new}
    return nn.Sequential(*layers), sample


def state(module, sample):
    """Everything that a profile might disturb, and the tensors themselves by id."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    leaves = [x for x in tree_leaves(sample) if isinstance(x, torch.Tensor)]
    grads = [p.grad for p in module.parameters()]
    return {
        'identity': {name: id(x) for name, x in tensors.items()},
        'value': [x.detach().numpy().tobytes() for x in (*tensors.values(), *leaves)],
        'version': [x._version for x in (*tensors.values(), *leaves)],
        'requires_grad': [x.requires_grad for x in (*tensors.values(), *leaves)],
        'gradient': [grad if grad is None else (id(grad), grad.numpy().tobytes()) for grad in grads],
        'sample gradient': [x.grad for x in leaves],
        'training': [part.training for part in module.modules()],
        'hooks': [(list(part._forward_hooks), list(part._backward_hooks)) for part in module.modules()],
        'random': (torch.get_rng_state().numpy().tobytes(), random.getstate()),
        'settings': (torch.get_num_threads(), torch.is_grad_enabled()),
    }


@given(networks(), st.data())
@settings(max_examples=60)
def test_a_profile_leaves_everything_as_it_was(network, data):
    module, sample = network
    fired = []
    for part in module:
        part.train(data.draw(st.booleans()))
        part.register_forward_hook(lambda *_: None)
    for parameter in module.parameters():
        if parameter.requires_grad and data.draw(st.booleans()):
            parameter.grad = torch.randn_like(parameter)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(fired.append)
    before = state(module, sample)
    costs = profile(module, sample, timeout=0)
    assert balance_by_size(1, module, sample) == [len(module)]
    assert balance_by_time(1, module, sample, timeout=0) == [len(module)]
    assert state(module, sample) == before and not fired
    assert len(costs) == len(module) and all(cost.forward > 0 for cost in costs)


@given(networks())
@settings(max_examples=60)
def test_saved_bytes_of_the_layers_add_up_to_the_models(network):
    module, sample = network
    costs = profile(module, sample, timeout=0)
    saved = {}
    own = {x.data_ptr() for x in (*module.parameters(), *module.buffers())}

    def pack(x):
        saved[x.untyped_storage().data_ptr()] = x.detach()
        return x.detach()

    def clone(x):
        return x.detach().requires_grad_(x.requires_grad).clone()

    inputs = tree_map_only(torch.Tensor, clone, sample)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = module(inputs)
    assert output is not None   # holds the graph
    assert sum(cost.saved_bytes for cost in costs) == sum(
        x.untyped_storage().nbytes() for address, x in saved.items() if address not in own)


def test_a_nested_output_counts_all_its_tensors():
    nest, unnest = profile(nn.Sequential(Nest(), Unnest()), torch.randn(5, WIDTH), timeout=0)
    assert nest.output_bytes == 2 * 5 * WIDTH * FLOAT + 5 * 8   # two of floats, five row numbers
    assert unnest.output_bytes == 5 * WIDTH * FLOAT


def test_what_passes_through_a_layer_is_not_counted_again_behind_it():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), Nest(), Unnest())
    saved = [cost.saved_bytes for cost in profile(module, torch.randn(5, WIDTH), timeout=0)]
    assert saved == [5 * WIDTH * FLOAT * n for n in (1, 1, 0, 1)]   # x * y: the Sigmoid has saved x


def test_a_weight_with_a_history_can_be_copied():
    class Keeps(nn.Linear):
        def forward(self, x):
            self.latest = super().forward(x)   # not a leaf: deepcopy alone would refuse
            return self.latest

    module = nn.Sequential(Keeps(3, 3))
    module(torch.randn(2, 3))
    kept = module[0].latest
    assert profile(module, torch.randn(2, 3), timeout=0)[0].parameter_bytes == 12 * FLOAT
    assert module[0].latest is kept and kept.grad_fn is not None
