"""What goes wrong in a stage reaches the caller as it was, says where it was, and leaves no damage.

The faults are real: layers and autograd Functions that raise, signals, a thread that cannot start.
"""

import json
import os
import signal
import threading
import time
import traceback

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import GPipe
from fewgpu.device import Device
from tests.pipes import (BACKWARD, CHECKPOINTS, FORWARD, RECOMPUTE, Call, Failing, Slow, cut, mlp,
                         program)

WORDS = {FORWARD: 'F', RECOMPUTE: 'R', BACKWARD: 'B'}


def step(model: nn.Module, rows: int = 4) -> None:
    model(torch.rand(rows, 2)).sum().backward()


def three_stages(where: int, chunks: int = 1, checkpoint: str = 'never') -> tuple[GPipe, Failing]:
    layers: list[nn.Module] = [nn.Linear(2, 2) for _ in range(3)]
    failing = Failing()
    layers[where] = nn.Sequential(layers[where], failing)
    return cut(*layers, chunks=chunks, checkpoint=checkpoint), failing


@settings(max_examples=15)
@given(when=st.sampled_from([FORWARD, RECOMPUTE, BACKWARD]), where=st.integers(0, 2),
       micro_batch=st.integers(0, 3),
       kind=st.sampled_from([ValueError, KeyError, StopIteration, SystemExit, KeyboardInterrupt,
                             GeneratorExit, torch.OutOfMemoryError]))
def test_an_error_anywhere_comes_out_as_it_is_with_its_place_and_the_next_step_works(
        when: str, where: int, micro_batch: int, kind: type) -> None:
    model, failing = three_stages(where, chunks=4, checkpoint='always')
    error = kind('wrong')
    # Forwards come in order of the micro-batches, recomputes and backwards the last first.
    failing.fail(when, micro_batch if when == FORWARD else 3 - micro_batch, error)
    with pytest.raises(kind) as caught:
        step(model)
    assert caught.value is error
    (note,) = error.__notes__
    assert note.startswith(f'in stage {where} on CPU {where}, {when} of micro-batch {micro_batch} '
                           f'({WORDS[when]}{micro_batch}), at {pipes_file()}:')
    assert note.endswith("raise self.error   # the learner's own line")
    assert 'pass_by' in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    failing.recover()
    step(model)


def pipes_file() -> str:
    return Failing.forward.__code__.co_filename


def test_the_own_line_is_the_learners_and_not_one_of_a_library_below() -> None:
    model = cut(nn.Linear(2, 2), Call(lambda x: json.loads('{')))
    with pytest.raises(json.JSONDecodeError) as caught:
        model(torch.rand(2, 2))
    assert f'at {__file__}:' in caught.value.__notes__[0]


def test_the_cause_of_an_error_stays_attached() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        try:
            return x / {}['scale']
        except KeyError as missing:
            raise RuntimeError('no scale') from missing

    with pytest.raises(RuntimeError, match='no scale') as caught:
        cut(nn.Linear(2, 2), Call(layer))(torch.rand(2, 2))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_backward_that_failed_leaves_nothing_in_the_gradients_of_the_next() -> None:
    """Of a retained graph, too: some micro-batches had gone through before the error."""
    model, failing = three_stages(1, chunks=4)
    loss = model(torch.rand(4, 2)).sum()
    failing.fail(BACKWARD, 2, ValueError('wrong'))
    with pytest.raises(ValueError, match='wrong'):
        loss.backward(retain_graph=True)
    failing.recover()
    assert all(parameter.grad is None for parameter in model.parameters())
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), first))


@pytest.mark.parametrize('kind', [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_layer_ends_the_program_with_its_code(kind: type) -> None:
    ended = program(f'''
import torch
from torch import nn
from fewgpu import GPipe
class Leave(nn.Module):
    def forward(self, x):
        raise {kind.__name__}(7)
GPipe(nn.Sequential(nn.Linear(2, 2), Leave()), [1, 1], devices=['cpu'] * 2)(torch.rand(4, 2))
''')
    assert ended.returncode == (7 if kind is SystemExit else -signal.SIGINT)


@pytest.mark.skipif(os.name == 'nt', reason='signals of this sort are not sent on Windows')
@pytest.mark.parametrize('when', [FORWARD, BACKWARD])
def test_ctrl_c_reaches_the_waiting_caller_after_the_running_operation(when: str) -> None:
    counting, slow = Failing(), Slow(0.1)
    model = cut(nn.Linear(2, 2), nn.Sequential(counting, slow), nn.Linear(2, 2), chunks=200,
                checkpoint='never')
    if when == BACKWARD:
        slow.seconds = 0.0
        loss = model(torch.rand(200, 2)).sum()
        slow.seconds = 0.1
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):   # all of it would take 20 s
        loss.backward() if when == BACKWARD else model(torch.rand(200, 2))
    timer.join()
    assert counting.runs[when] < 100
    slow.seconds = 0.0
    step(model)


@pytest.mark.skipif(os.name == 'nt', reason='signals of this sort are not sent on Windows')
def test_a_second_ctrl_c_waits_for_the_operation_and_loses_no_parameter(
        capsys: pytest.CaptureFixture) -> None:
    model = cut(nn.Sequential(nn.Linear(2, 2), Slow(1.0)), nn.Linear(2, 2))
    parameters = list(model.parameters())
    timers = [threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT)) for wait in (0.3, 0.6)]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        step(model)
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert 'device 0 (at F0)' in capsys.readouterr().err
    step(model)
    assert all(p.grad is not None for p in parameters)


@pytest.mark.skipif(os.name == 'nt', reason='signals of this sort are not sent on Windows')
def test_an_error_raised_by_a_signal_handler_stops_the_step() -> None:
    """As a job's time limit does, that a handler turns into an error."""
    def handler(number: int, frame: object) -> None:
        raise TimeoutError('the job is over')

    counting = Failing()
    model = cut(nn.Sequential(counting, Slow(0.1)), nn.Linear(2, 2), chunks=200)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        # Python drops what a handler raises inside a weakref's callback: then it comes once more.
        signal.setitimer(signal.ITIMER_REAL, 0.3, 2.0)
        with pytest.raises(TimeoutError, match='the job is over'):
            model(torch.rand(200, 2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    runs = counting.runs[FORWARD]
    time.sleep(0.3)
    assert runs == counting.runs[FORWARD] < 100   # and nobody works on in the background


class Unstartable(Device):
    """Its thread cannot start, as when a machine has no threads left."""

    broken = True

    def submit(self, job) -> None:
        if self.broken:
            raise RuntimeError("can't start new thread")
        super().submit(job)


@pytest.mark.parametrize('where', [0, 1, 2])
def test_a_worker_that_cannot_start_is_an_error_and_no_hang(where: int) -> None:
    devices: list[Device] = [Device(index=i) for i in range(3)]
    devices[where] = Unstartable(index=where)
    model = cut(*[nn.Linear(2, 2) for _ in range(3)], devices=devices, chunks=3)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        step(model)
    devices[where].broken = False
    step(model)


def test_a_second_backward_says_that_the_graph_was_freed() -> None:
    loss = cut(*mlp(), chunks=2)(torch.rand(4, 4).double()).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match=r'freed by its first backward.*retain_graph=True'):
        loss.backward()


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_a_gradient_of_a_gradient_is_refused_with_what_to_do(checkpoint: str) -> None:
    x = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    output = cut(*mlp(), chunks=2, checkpoint=checkpoint)(x).sum()
    with pytest.raises(RuntimeError, match='create_graph, or use the plain module'):
        torch.autograd.grad(output, x, create_graph=True)


@pytest.mark.parametrize('checkpoint', ['always', 'never'])
def test_a_parameter_changed_between_forward_and_backward_is_an_error(checkpoint: str) -> None:
    """Without recompute torch says so; a recompute would silently use the new one."""
    model = cut(*mlp(), chunks=2, checkpoint=checkpoint)
    loss = model(torch.rand(4, 4).double()).sum()
    torch.optim.SGD(model.parameters(), lr=0.1).step()   # no gradients yet: changes nothing
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match='changed between|modified by an inplace'):
        loss.backward()


def test_a_stage_that_does_not_fit_its_input_says_which_stage_it_is() -> None:
    with pytest.raises(RuntimeError, match='shapes cannot be multiplied') as caught:
        cut(nn.Linear(2, 3), nn.Linear(2, 3), chunks=2)(torch.rand(4, 2))
    assert caught.value.__notes__[0].startswith('in stage 1 on CPU 1, forward of micro-batch')


def test_outputs_that_cannot_be_put_together_say_which_stage_made_them() -> None:
    with pytest.raises(TypeError, match='tensor without rows') as caught:
        cut(nn.Linear(2, 2), Call(torch.sum), chunks=2)(torch.rand(4, 2))
    assert caught.value.__notes__ == ['in stage 1 on CPU 1, putting the micro-batches together']


def test_a_program_ends_while_its_pipeline_is_alive() -> None:
    ended = program("import torch; from torch import nn; from fewgpu import GPipe\n"
                    "model = GPipe(nn.Sequential(nn.Linear(2, 2)), [1], devices=['cpu'])\n"
                    "output = model(torch.rand(4, 2)); output.sum().backward()\nprint('end')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'end\n', '')
