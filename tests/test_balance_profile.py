"""The profile of layers against bytes counted by hand, sleeps, and watchers."""
import threading
import time
import weakref

import pytest
import torch
from torch import nn

from fewgpu.balance import balance_by_time, profile

FLOAT = 4   # bytes


class Watched(nn.Linear):
    """Notes in a list that its copies share how many threads it has and whose weight is alive."""

    def __init__(self, features, seen):
        super().__init__(features, features)
        self.seen = seen

    def __deepcopy__(self, memo):
        copy = Watched(self.in_features, self.seen)
        copy.load_state_dict(self.state_dict())
        return copy

    def forward(self, x):
        self.seen.append((weakref.ref(self.weight), torch.get_num_threads()))
        assert all(weight() is None for weight, _ in self.seen[:-1]), 'another copy is alive'
        return super().forward(x)


class Sleep(nn.Module):
    def __init__(self, seconds, backward=0.0):
        super().__init__()
        self.seconds, self.backward = seconds, backward

    def forward(self, x):
        time.sleep(self.seconds)
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda gradient: time.sleep(self.backward))
        return y


def test_bytes_are_those_counted_by_hand():
    rows = 6
    module = nn.Sequential(
        nn.Linear(8, 16).requires_grad_(False),   # nothing to train, nothing to save
        nn.Linear(16, 10, bias=False),            # saves its input
        nn.BatchNorm1d(10),                       # its input, and mean and deviation of each feature
        nn.ReLU(inplace=True),                    # its output
        nn.Linear(10, 3),                         # its input is the ReLU's output: already saved
        nn.Sigmoid(),                             # its output
    )
    costs = profile(module, torch.randn(rows, 8), timeout=0)
    saved = [0, rows * 16, rows * 10 + 20, rows * 10, 0, rows * 3]
    assert [cost.saved_bytes for cost in costs] == [FLOAT * n for n in saved]
    assert [cost.output_bytes // FLOAT for cost in costs] == [rows * n for n in (16, 10, 10, 10, 3, 3)]
    assert [cost.parameter_bytes // FLOAT for cost in costs] == [9 * 16, 160, 20, 0, 33, 0]
    assert costs[0].backward == 0 < costs[1].backward


def test_part_of_a_graph_that_is_thrown_away_is_not_counted():
    class Waste(nn.Linear):
        def forward(self, x):
            torch.exp(super().forward(torch.exp(x)))
            return super().forward(x)

    waste, = profile(nn.Sequential(Waste(3, 3)), torch.randn(5, 3), timeout=0)
    assert waste.saved_bytes == 5 * 3 * FLOAT


def test_parameters_shared_between_layers_count_in_each():
    shared = nn.Linear(3, 3)
    first, _, second = profile(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(2, 3), timeout=0)
    assert first.parameter_bytes == second.parameter_bytes == 12 * FLOAT


def test_layers_take_turns_on_the_device_with_one_thread_a_warm_up_and_two_rounds():
    seen = []
    module = nn.Sequential(*(Watched(3, seen) for _ in range(4)))
    for autocast in (False, True):   # whose cache of weights must not hold the copies either
        seen.clear()
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            profile(module, torch.randn(2, 3), timeout=0)
            assert len(seen) == 3 * len(module)   # rounds times layers
            assert {threads for _, threads in seen} == {1}
            assert all(weight() is None for weight, _ in seen)


def test_a_layer_in_eval_mode_is_profiled_as_in_training():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    training = [cost.saved_bytes for cost in profile(module, torch.randn(4, 3), timeout=0)]
    module.eval()
    assert [cost.saved_bytes for cost in profile(module, torch.randn(4, 3), timeout=0)] == training
    assert training[1] > 0   # the mask


def test_one_slow_round_does_not_count():
    calls = []

    class Hiccup(nn.Module):
        def forward(self, x):
            calls.append(1)
            time.sleep(0.2 if len(calls) == 2 else 0.0)   # in the first timed round
            return x

    hiccup, steady = profile(nn.Sequential(Hiccup(), Sleep(0.1)), torch.ones(1), timeout=0)
    assert len(calls) == 3 and hiccup.forward < steady.forward


def test_a_longer_timeout_gives_more_rounds():
    seen = []
    profile(nn.Sequential(Watched(3, seen)), torch.randn(2, 3), timeout=0.2)
    assert len(seen) > 3


def test_the_number_of_threads_is_put_back_in_any_thread_and_after_an_error():
    before, seen, after = torch.get_num_threads(), [], []
    try:
        torch.set_num_threads(2)

        def run():
            profile(nn.Sequential(Watched(3, seen)), torch.randn(2, 3), timeout=0)
            after.append(torch.get_num_threads())

        for target in (run, lambda: after.append(torch.get_num_threads())):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        with pytest.raises(RuntimeError):
            profile(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 4), timeout=0)
        after.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert {threads for _, threads in seen} == {1} and after == [2, 2, 2]


@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_a_profile_measures_the_backward_whatever_the_callers_grad_mode(mode):
    with mode():
        cost, = profile(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3), timeout=0)
        assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
    assert cost.backward > 0 and cost.saved_bytes == 6 * FLOAT


def test_forward_and_backward_are_timed_apart():
    module = nn.Sequential(nn.Linear(1, 1), Sleep(0.03), Sleep(0.0, backward=0.03))
    _, forward, backward = profile(module, torch.randn(2, 1), timeout=0)
    assert forward.forward > forward.backward and backward.backward > backward.forward


def test_sleeping_layers_are_balanced_by_their_sleep():
    sleeps = nn.Sequential(*(Sleep(n * 0.03) for n in range(1, 7)))
    sample = torch.zeros(1)
    assert balance_by_time(2, sleeps, sample, timeout=0) == [4, 2]
    costs = [cost.forward for cost in profile(sleeps, sample, timeout=0)]
    assert costs == sorted(costs)
