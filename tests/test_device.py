"""A virtual device is one core that runs its jobs in order, and has the memory it was given."""

import copy
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu import Device, GPipe, get_devices
from fewgpu.device import one_thread
from tests.pipes import CHECKPOINTS


def on(device: Device, job) -> object:
    """What `job()` returns in the worker of the device."""
    box, ready = [], threading.Event()
    device.submit(lambda: (box.append(job()), ready.set()))
    assert ready.wait(30)
    return box[0]


@given(jobs=st.integers(1, 20), devices=st.integers(1, 3))
def test_jobs_run_in_order_in_one_thread_a_device(jobs: int, devices: int) -> None:
    several = [Device(index=i) for i in range(devices)]
    seen: list[list] = [[] for _ in several]
    for i in range(jobs):
        for device, mine in zip(several, seen):
            device.submit(lambda i=i, mine=mine: mine.append((i, threading.get_ident())))
    for device, mine in zip(several, seen):
        on(device, lambda: None)
        assert [i for i, _ in mine] == list(range(jobs))
        assert len({thread for _, thread in mine}) == 1
    assert len({mine[0][1] for mine in seen}) == devices


@pytest.mark.parametrize('threads', [1, 2, 3])
def test_a_worker_computes_on_one_core_and_the_caller_on_as_many_as_before(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert on(Device(), torch.get_num_threads) == 1
        assert torch.get_num_threads() == threads
        others: list[int] = []
        thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert others == [threads]   # also in threads to come
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_the_calling_thread_can_be_a_device_for_a_while() -> None:
    device = Device(memory_limit=10_000)
    with device.active() as same:
        assert same is device and torch.get_num_threads() == 1
        kept = torch.zeros(100)
        assert device.ledger.allocated == 400
        with pytest.raises(torch.OutOfMemoryError, match='CPU 0 out of memory'):
            torch.zeros(10_000)
    torch.zeros(100_000)   # not on the device
    assert device.ledger.allocated == 400
    del kept
    assert device.ledger.allocated == 0


@given(n=st.integers(0, 5), limit=st.one_of(st.none(), st.integers(1, 10**12)))
def test_virtual_devices_are_numbered_and_have_the_limit_each(n: int, limit: int | None) -> None:
    devices = get_devices(n, kind='cpu', memory_limit=limit)
    assert [d.name for d in devices] == [f'CPU {i}' for i in range(n)]
    assert all(d.is_virtual and d.torch == torch.device('cpu') for d in devices)
    assert [d.memory_limit for d in devices] == [limit] * n
    assert [d.ledger is None for d in devices] == [limit is None] * n


def test_a_device_of_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="of kind 'cpu' or 'cuda', not 'tpu'"):
        get_devices(2, kind='tpu')


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_devices_are_virtual_and_gpus_are_refused_with_the_remedy() -> None:
    assert all(device.is_virtual for device in get_devices(2))
    with pytest.raises(ValueError, match="use virtual CPU devices: kind='cpu'"):
        get_devices(2, kind='cuda')


def test_two_stages_on_one_device_object_are_refused() -> None:
    (device,) = get_devices(1, kind='cpu')
    with pytest.raises(ValueError, match='Device of its own'):
        GPipe(nn.Sequential(nn.Identity(), nn.Identity()), [1, 1], devices=[device, device])


def test_a_meter_is_turned_on_and_off_and_a_limit_keeps_it_on() -> None:
    device, limited = Device(), Device(memory_limit=100)
    assert device.ledger is None and device.meter() is device.ledger is not None
    device.unmeter()
    limited.unmeter()
    assert device.ledger is None and limited.ledger is not None


def test_a_pickled_device_is_another_one_like_it_and_a_copied_one_is_itself() -> None:
    device = Device('cpu', index=3, memory_limit=100)
    on(device, lambda: None)   # its thread runs
    other = pickle.loads(pickle.dumps(device))
    assert other is not device
    assert (other.name, other.memory_limit, other.ledger.allocated) == ('CPU 3', 100, 0)
    assert copy.deepcopy(device) is device
    assert on(other, lambda: 1) == 1


def deep(width: int = 64, depth: int = 8) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)])


ROWS, STATES = 512, 8 * (64 * 64 + 64) * 4   # bytes of the parameters, and of the gradients
ACTIVATION = ROWS * 64 * 4                   # bytes of what a layer returns


def train(model: nn.Module, rows: int = ROWS) -> None:
    model(torch.rand(rows, 64)).sum().backward()


def test_plain_runs_out_of_the_memory_in_which_a_pipeline_with_recompute_fits() -> None:
    limit = STATES * 2 + 8 * ACTIVATION   # plain keeps 16 activations
    (device,) = get_devices(1, kind='cpu', memory_limit=limit)
    plain = deep()
    with pytest.raises(torch.OutOfMemoryError, match='Use a smaller batch'), device.active():
        device.ledger.adopt(plain.parameters(), parameters=True)
        train(plain)
    devices = get_devices(2, kind='cpu', memory_limit=limit)
    model = GPipe(deep(), [4, 4], devices=devices, chunks=8, checkpoint='always')
    train(model)
    assert all(ACTIVATION < device.ledger.peak <= limit for device in devices)


@pytest.mark.parametrize('small', [0, 1, 2])
def test_the_stage_whose_device_is_too_small_says_so_and_a_smaller_batch_works(small: int) -> None:
    big, limit = 10**9, STATES * 2 + 2 * ACTIVATION
    devices = [Device(index=i, memory_limit=limit if i == small else big) for i in range(3)]
    model = GPipe(deep(), [3, 3, 2], devices=devices, chunks=4, checkpoint='never')
    with pytest.raises(torch.OutOfMemoryError) as caught:
        train(model)
    message, (note,) = str(caught.value), caught.value.__notes__
    assert message.startswith(f'CPU {small} out of memory. Tried to allocate ')
    amount = f'{limit / 1e6:,.1f} MB' if limit >= 1e6 else f'{limit / 1e3:,.1f} kB'
    assert f'of its {amount} limit' in message and 'recompute' in message
    assert note.startswith(f'in stage {small} on CPU {small}, ')
    del caught
    assert [d.ledger.allocated for d in devices] == [d.ledger.parameters for d in devices]
    train(model, rows=32)


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_after_a_step_a_device_holds_parameters_and_gradients_and_nothing_else(
        checkpoint: str) -> None:
    devices = get_devices(2, kind='cpu', memory_limit=10**9)
    model = GPipe(deep(), [3, 5], devices=devices, chunks=3, checkpoint=checkpoint)
    for _ in range(2):
        model.zero_grad()
        train(model)
    assert [device.ledger.allocated for device in devices] == [2 * STATES * 3 // 8, 2 * STATES * 5 // 8]
    assert sum(device.ledger.parameters for device in devices) == STATES


def test_parameters_that_do_not_fit_are_an_error_of_their_stage() -> None:
    devices = [Device(index=0, memory_limit=10**9), Device(index=1, memory_limit=1000)]
    model = GPipe(deep(), [4, 4], devices=devices)
    with pytest.raises(torch.OutOfMemoryError, match='CPU 1 out of memory') as caught:
        train(model)
    assert caught.value.__notes__ == ['in stage 1 on CPU 1, before the step']


LETS_GO_SLOWLY = '''
import functools, time, torch
from fewgpu.device import Device

class Slow:
    def __init__(self, seconds):
        self.sleep = functools.partial(time.sleep, seconds)

    def __del__(self):
        self.sleep()

class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slow = Slow(0.01)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient

device = Device()
device.submit(functools.partial(list, [Keep.apply(torch.ones(1, requires_grad=True)) for _ in range(80)]))
del device
as_the_last = Slow(0.3)   # Python is half gone by then
'''


def test_python_ends_while_the_worker_of_a_dropped_device_still_lets_go_of_a_graph() -> None:
    """The worker took the interpreter lock in a C++ destructor, and the process aborted."""
    ended = subprocess.run([sys.executable, '-c', LETS_GO_SLOWLY], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, '')
