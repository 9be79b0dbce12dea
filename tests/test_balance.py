"""Balances by time and by size: hand counts, errors, and the peer's signatures."""
import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu.balance import balance_by_size, balance_by_time, cut, profile
from fewgpu.device import get_devices

FLOAT = 4   # bytes


@given(st.lists(st.integers(1, 40), min_size=2, max_size=8), st.integers(1, 9), st.integers(1, 4),
       st.sampled_from([0, 1, 2.0, 3.5]), st.data())
@settings(max_examples=40)
def test_size_is_a_micro_batch_of_saved_inputs_and_the_copies_of_parameters(
        widths, rows, chunks, scale, data):
    pairs = list(zip(widths, widths[1:]))
    partitions = data.draw(st.integers(1, len(pairs)))
    module = nn.Sequential(*(nn.Linear(n, m, bias=False) for n, m in pairs))
    micro_batch = -(-rows // chunks)
    by_hand = [FLOAT * (micro_batch * n + scale * n * m) for n, m in pairs]
    mini_batch = torch.randn(rows, widths[0])
    balance = balance_by_size(partitions, module, mini_batch, chunks=chunks, param_scale=scale)
    assert balance == cut(by_hand, partitions)


def test_activations_or_parameters_decide_by_chunks_and_param_scale():
    module = nn.Sequential(nn.Linear(1000, 1, bias=False), nn.Linear(1, 1, bias=False),
                           nn.Linear(1, 2000, bias=False))
    sample = torch.randn(64, 1000)   # saved floats: 64,000, 64 and 64; weights: 1000, 1 and 2000
    assert balance_by_size(2, module, sample, param_scale=0) == [1, 2]
    assert balance_by_size(2, module, sample, chunks=64, param_scale=9.0) == [2, 1]


@pytest.mark.parametrize('balance', [balance_by_time, balance_by_size])
@pytest.mark.parametrize('arguments, error, message', [
    ((3, nn.Sequential(nn.ReLU()), torch.ones(1)), ValueError, 'ask for at most 1'),
    ((0, nn.Sequential(nn.ReLU()), torch.ones(1)), ValueError, 'at least one stage'),
    ((1.5, nn.Sequential(nn.ReLU()), torch.ones(1)), TypeError, 'whole number'),
    ((1, nn.ReLU(), torch.ones(1)), TypeError, r'not ReLU: .*nn.Sequential\('),
    ((1, nn.Sequential(nn.ReLU()), 'text'), TypeError, 'not str'),
    ((1, nn.Sequential(nn.ReLU()), [1, None]), TypeError, 'not list'),
])
def test_bad_input_gets_one_sentence_with_the_remedy(balance, arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        balance(*arguments)
    assert '\n' not in str(caught.value)


def test_other_bad_arguments_are_refused():
    module, sample = nn.Sequential(nn.ReLU()), torch.ones(2)
    with pytest.raises(ValueError, match='at least one micro-batch'):
        balance_by_size(1, module, sample, chunks=0)
    with pytest.raises(ValueError, match='param_scale is -1'):
        balance_by_size(1, module, sample, param_scale=-1)
    with pytest.raises(ValueError, match="pass device='cpu'"):
        balance_by_time(1, module, sample, device='cuda:99')


def test_a_device_may_be_named_in_any_way():
    module, sample = nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(2)
    for device in ('cpu', torch.device('cpu'), get_devices(1, kind='cpu')[0]):
        assert balance_by_size(2, module, sample, device=device) == [1, 1]


def test_a_layers_own_error_says_which_layer():
    with pytest.raises(RuntimeError) as caught:
        balance_by_time(1, nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), torch.ones(2, 5))
    assert caught.value.__notes__ == ['while profiling layer 1 (Linear)']


def test_signatures_are_torchgpipes():
    peer = pytest.importorskip('torchgpipe.balance')
    for ours in (balance_by_time, balance_by_size):
        a = inspect.signature(ours).parameters
        b = inspect.signature(getattr(peer, ours.__name__)).parameters
        assert [(p.name, p.kind) for p in a.values()] == [(p.name, p.kind) for p in b.values()]
        assert all(a[name].default == b[name].default for name in a if name != 'device')   # 'cuda' there


@pytest.mark.gpu
def test_a_gpu_gives_the_bytes_of_the_cpu_and_keeps_its_random_state():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), Noise(), nn.Linear(16, 4),
                           nn.Sigmoid())
    sample = torch.randn(6, 8)
    torch.cuda.init()
    before, allocated = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    gpu = profile(module, sample, timeout=0, device='cuda')
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert next(module.parameters()).device.type == 'cpu'
    cpu = profile(module, sample, timeout=0, device='cpu')
    for a, b in zip(gpu, cpu):
        assert replace(a, forward=0, backward=0) == replace(b, forward=0, backward=0)
        assert a.forward > 0 and a.backward > 0
    balances = [balance_by_size(2, module, sample, device=device) for device in (0, 'cuda', 'cpu')]
    assert balances[0] == balances[1] == balances[2]
    assert torch.cuda.memory_allocated() - allocated < 2 ** 26   # workspaces, but no layers
