"""Nothing outlives its use: no tensor, step, model or thread, and without the garbage collector."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fewgpu import GPipe
from fewgpu.bridge import Step
from fewgpu.device import Device
from tests.pipes import BACKWARD, CHECKPOINTS, FORWARD, RECOMPUTE, Failing, cut, settled

checkpoints = pytest.mark.parametrize('checkpoint', CHECKPOINTS)


@pytest.fixture(scope='module', autouse=True)
def what_was_there_before() -> Iterator[None]:
    """What other tests left is collected, and not looked at again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Only reference counts free anything in a test."""
    BEFORE[:] = threading.enumerate()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


BEFORE: list[threading.Thread] = []   # threads that the running test has not started


def threads() -> list[str]:
    """Names of the workers that the running test has started."""
    return sorted(thread.name for thread in threading.enumerate()
                  if thread not in BEFORE and thread.name.startswith('fewgpu'))


def live_steps() -> int:
    return sum(type(thing) is Step for thing in gc.get_objects())


class Spy(nn.Module):
    """Remembers every activation that it made, weakly."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[weakref.ref] = []

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value.tanh()   # which it keeps for its backward
        self.seen.append(weakref.ref(value.untyped_storage()))
        return value

    def alive(self) -> int:
        return sum(seen() is not None for seen in self.seen)


def build(checkpoint: str) -> tuple[GPipe, Spy, Failing]:
    spy, failing = Spy(), Failing()
    model = cut(nn.Linear(4, 4), spy, failing, nn.Linear(4, 4), chunks=3, checkpoint=checkpoint)
    return model, spy, failing


@checkpoints
def test_activations_go_with_the_backward_and_the_step_with_the_output(checkpoint: str) -> None:
    model, spy, _ = build(checkpoint)
    output = model(torch.rand(9, 4))
    output.sum().backward()
    assert settled(lambda: spy.alive() == 0)
    assert live_steps() == 1
    del output
    assert settled(lambda: live_steps() == 0)


@checkpoints
def test_a_forward_without_a_backward_leaves_nothing(checkpoint: str) -> None:
    model, spy, _ = build(checkpoint)
    output = model(torch.rand(9, 4))
    kept = {'always': 0, 'except_last': 1, 'never': 3}[checkpoint]
    assert settled(lambda: (spy.alive(), live_steps()) == (kept, 1))
    del output
    assert settled(lambda: (spy.alive(), live_steps()) == (0, 0))


@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_without_gradients_only_the_output_stays(mode) -> None:
    model, spy, _ = build('never')
    with mode():
        output = model(torch.rand(9, 4))
    assert settled(lambda: (spy.alive(), live_steps()) == (0, 0))
    assert output.shape == (9, 4)


@checkpoints
@pytest.mark.parametrize('when', [FORWARD, RECOMPUTE, BACKWARD])
def test_a_handled_error_leaves_nothing(when: str, checkpoint: str) -> None:
    model, spy, failing = build(checkpoint)
    failing.fail(when, 1, ValueError('wrong'))
    x = torch.rand(9, 4)
    storage = weakref.ref(x.untyped_storage())
    try:
        model(x).sum().backward()
    except ValueError as error:
        assert error is failing.error
    failing.recover()   # it keeps the error, and the error its frames
    del x
    assert settled(lambda: (storage(), spy.alive(), live_steps()) == (None, 0, 0))


@checkpoints
def test_many_steps_leave_as_much_as_one(checkpoint: str) -> None:
    model, spy, _ = build(checkpoint)
    for _ in range(20):
        model(torch.rand(9, 4)).sum().backward()
    assert settled(lambda: (spy.alive(), live_steps()) == (0, 0))
    assert threads() == [f'fewgpu CPU {i}' for i in range(4)]


@checkpoints
@pytest.mark.parametrize('after', ['nothing', 'a step', 'an error'])
def test_a_deleted_model_takes_its_parameters_and_threads_with_it(after: str, checkpoint: str) -> None:
    model, spy, failing = build(checkpoint)
    if after == 'an error':
        failing.fail(FORWARD, 1, ValueError('wrong'))
        with pytest.raises(ValueError, match='wrong'):
            model(torch.rand(9, 4))
        failing.recover()
    elif after == 'a step':
        model(torch.rand(9, 4)).sum().backward()
        assert model.timeline.makespan > 0
    gone = [weakref.ref(model), weakref.ref(model[0]), weakref.ref(model.stage_devices[0])]
    del model, spy, failing
    assert settled(lambda: [ref() for ref in gone] == [None] * 3 and not threads())


def test_a_refused_move_keeps_nothing_of_the_model() -> None:
    model, _, _ = build('never')
    for _ in range(3):
        with pytest.raises(TypeError, match='denied to move'):
            model.cpu()
    gone = weakref.ref(model)
    del model
    assert settled(lambda: gone() is None)


def test_an_output_may_outlive_its_model() -> None:
    model, _, _ = build('always')
    weight, output = model[0].weight, model(torch.rand(9, 4))
    del model
    output.sum().backward()
    assert weight.grad is not None
    del output
    assert settled(lambda: not threads())


def test_the_thread_of_a_device_ends_with_it_and_runs_before_all_it_was_given() -> None:
    device, done = Device(), []
    for i in range(5):
        device.submit(lambda i=i: done.append((i, threading.current_thread().name)))
    gone = weakref.ref(device)
    del device
    assert settled(lambda: gone() is None and not threads())
    assert done == [(i, 'fewgpu CPU 0') for i in range(5)]


def test_a_device_keeps_nothing_of_the_job_that_it_has_run() -> None:
    device, ready, value = Device(), threading.Event(), torch.rand(3)
    storage = weakref.ref(value.untyped_storage())
    device.submit(lambda value=value: ready.set())
    assert ready.wait(10)
    del value
    assert settled(lambda: storage() is None)
