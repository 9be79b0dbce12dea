"""Laws of recompute: the second forward is the first one again, or an error says why it is not."""

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from fewgpu.gpipe import GPipe
from fewgpu.recompute import is_checkpointing, is_recomputing
from tests.layers import Call
from tests.networks import CHECKPOINTS, evenly, seeded, virtual
from tests.reference import differences, gradients, seen, state

RECOMPUTING = st.sampled_from(['always', 'except_last'])


def recomputed(checkpoint: str, micro_batches: int) -> int:
    """How many micro-batches run a second time."""
    return {'always': micro_batches, 'except_last': micro_batches - 1, 'never': 0}[checkpoint]


class Recorder(nn.Module):
    """Notes all that a layer may depend on, whenever it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('runs', torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(4))
        self.notes: dict[bool, list] = {False: [], True: []}   # first forwards, second ones

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        noise = torch.rand(4)
        self.notes[is_recomputing()].append([
            seen([x, self.runs, noise]), self.weight.detach().clone(), self.weight.requires_grad,
            self.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled('cpu'), str(torch.get_autocast_dtype('cpu')),
            torch.get_num_threads()])
        return x.add_(self.runs) * self.weight + noise


@given(evenly(1, 5), evenly(1, 6), st.sampled_from(CHECKPOINTS), evenly(1, 4), st.booleans(),
       st.sampled_from([None, torch.bfloat16, torch.float16]))
def test_a_layer_sees_the_same_when_it_runs_again(
        chunks: int, rows: int, checkpoint: str, stages: int, inputs_need_gradient: bool,
        autocast: torch.dtype | None) -> None:
    """Input, buffers, parameters, random numbers, modes: whatever the layers before it did."""
    layers = [nn.Linear(4, 4), Recorder(), nn.Dropout(0.5), Recorder()] * 2
    layers = [type(layer)(*([4, 4] if isinstance(layer, nn.Linear) else [])) for layer in layers]
    balance = [len(layers) // stages + (j < len(layers) % stages) for j in range(stages)]
    model = GPipe(nn.Sequential(*layers), balance, devices=virtual(stages), chunks=chunks,
                  checkpoint=checkpoint)
    inputs = torch.randn(rows, 4, requires_grad=inputs_need_gradient)
    with torch.autocast('cpu', autocast) if autocast else contextlib.nullcontext():
        outputs = model(inputs)
    outputs.float().sum().backward()
    count = recomputed(checkpoint, min(chunks, rows))
    for recorder in (layer for layer in model if isinstance(layer, Recorder)):
        first, second = recorder.notes[False], recorder.notes[True]
        assert len(first) == min(chunks, rows) == recorder.runs
        assert not differences(first[:count][::-1], second)


@given(evenly(1, 4), st.sampled_from(CHECKPOINTS), st.booleans())
def test_only_training_with_gradients_recomputes(chunks: int, checkpoint: str,
                                                 frozen: bool) -> None:
    """Not evaluation, not no_grad, and not a stage in which nothing needs a gradient."""
    model = GPipe(nn.Sequential(Recorder(), nn.Linear(4, 4), Recorder()), [2, 1],
                  devices=virtual(2), chunks=chunks, checkpoint=checkpoint)
    model.partitions[0].requires_grad_(not frozen)
    inputs = torch.randn(4, 4)
    with torch.no_grad():
        model(inputs)
    model.eval()
    model(inputs).sum().backward()
    assert not model[0].notes[True] and not model[2].notes[True]
    model.train()
    model(inputs).sum().backward()
    assert len(model[2].notes[True]) == recomputed(checkpoint, chunks)
    assert len(model[0].notes[True]) == (0 if frozen else recomputed(checkpoint, chunks))


def train_with(layers: list[nn.Module], checkpoint: str, between: Any = None, chunks: int = 3,
               ) -> list:
    """One step on two stages; `between` is called with the model between forward and backward."""
    with seeded(1):
        model = GPipe(nn.Sequential(*layers), [len(layers) - 1, 1], devices=virtual(2),
                      chunks=chunks, checkpoint=checkpoint)
        inputs = torch.linspace(-1, 1, 28).view(7, 4).requires_grad_()
        outputs = model(inputs)
        if between:
            between(model)
        outputs.sin().sum().backward()
    return [seen(outputs), gradients(model, inputs), state(model)]


@given(st.sampled_from(CHECKPOINTS))
def test_eval_between_forward_and_backward_changes_no_gradient(checkpoint: str) -> None:
    def layers() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)]

    def evaluate(model: GPipe) -> None:
        model.eval()

    one = train_with(layers(), checkpoint)
    other = train_with(layers(), checkpoint, between=evaluate)
    assert not differences(one, other)


def test_the_modes_of_the_caller_are_back_after_a_recompute() -> None:
    modes = []
    train_with([nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)], 'always',
               between=lambda model: (model.eval(), model[1].train(), modes.append(model)))
    assert [part.training for part in modes[0]] == [False, True, False]


@given(st.sampled_from(CHECKPOINTS))
def test_a_parameter_changed_before_the_backward_is_an_error(checkpoint: str) -> None:
    """As in the plain model: the gradient would be of another function than the outputs."""
    def step(model: GPipe) -> None:
        with torch.no_grad():
            model[1].weight.mul_(2)

    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]
    with pytest.raises(RuntimeError, match='parameter was changed|modified by an inplace'):
        train_with(layers, checkpoint, between=step)


class NowAndThen(nn.Module):
    """Writes into a buffer in some forwards only, replaces another one, and sets a third one."""

    def __init__(self, writes: list[bool]) -> None:
        super().__init__()
        self.register_buffer('scale', torch.ones(4))
        self.register_buffer('total', torch.zeros(()))
        self.register_buffer('run', torch.zeros((), dtype=torch.int64))
        self.register_buffer('latest', None)
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * self.scale.clone() + self.total
        if self.writes[int(self.run)]:
            self.scale += 1
        self.total = self.total + 0.25
        self.latest = x.detach().mean()
        self.run += 1
        return result


@given(st.lists(st.booleans(), min_size=5, max_size=5), evenly(1, 5))
def test_a_recompute_sees_the_buffers_of_its_forward_whatever_later_ones_wrote(
        writes: list[bool], chunks: int) -> None:
    results = []
    for checkpoint in CHECKPOINTS:
        torch.manual_seed(0)
        layers = [nn.Linear(4, 4), NowAndThen(writes), nn.Tanh(), nn.Linear(4, 4)]
        results.append(train_with(layers, checkpoint, chunks=chunks))
    assert not differences(results[0], results[2]) and not differences(results[1], results[2])


@given(RECOMPUTING)
def test_a_buffer_that_forwards_only_read_must_not_change_before_the_backward(
        checkpoint: str) -> None:
    def change(model: GPipe) -> None:
        model[1].scale += 1

    layers = [nn.Linear(4, 4), NowAndThen([False] * 3), nn.Linear(4, 4)]
    with pytest.raises(RuntimeError, match='buffer has changed'):
        train_with(layers, checkpoint, between=change)


@given(RECOMPUTING, st.booleans())
def test_a_layer_that_does_something_else_the_second_time_is_an_error(checkpoint: str,
                                                                      more: bool) -> None:
    def moody(x: torch.Tensor) -> Any:
        return (x, x * 2) if more and is_recomputing() else (x.detach() if is_recomputing() else x)

    layers = [nn.Linear(4, 4), Call(moody), nn.Linear(4, 4)]
    with pytest.raises(RuntimeError, match='do the same both times') as caught:
        train_with(layers, checkpoint)
    assert 'recompute of micro-batch' in caught.value.__notes__[0]


def test_a_layer_that_calls_backward_itself_is_told_that_it_must_not() -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.autograd.grad(x.square().sum(), x)[0].detach()

    with pytest.raises(RuntimeError, match='must not call backward'):
        train_with([nn.Linear(4, 4), Call(greedy), nn.Linear(4, 4)], 'always')


@given(st.sampled_from(CHECKPOINTS), st.booleans())
def test_torch_checkpoint_in_a_layer_gives_the_same_gradients(checkpoint: str,
                                                              reentrant: bool) -> None:
    results = []
    for inner in (False, True):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        layer = Call(lambda x, block, inner=inner: torch_checkpoint(
            block, x, use_reentrant=reentrant) if inner else block(x), block=block)
        results.append(train_with([nn.Linear(4, 4), layer, nn.Linear(4, 4)], checkpoint))
    assert not differences(*results)


@given(st.sampled_from(CHECKPOINTS), st.booleans())
def test_torch_checkpoint_round_a_layer_that_draws_is_refused(checkpoint: str,
                                                              reentrant: bool) -> None:
    layer = Call(lambda x, drop: torch_checkpoint(drop, x, use_reentrant=reentrant),
                 drop=nn.Dropout(0.5))
    with pytest.raises(RuntimeError, match='leave the recompute to the pipeline'):
        train_with([nn.Linear(4, 4), layer, nn.Linear(4, 4)], checkpoint)


def test_a_layer_can_tell_in_which_forward_it_runs() -> None:
    told = []
    layer = Call(lambda x: (told.append((is_checkpointing(), is_recomputing())), x)[1])
    train_with([nn.Linear(4, 4), layer, nn.Linear(4, 4)], 'except_last', chunks=2)
    assert told == [(True, False), (False, False), (False, True)]
    assert not is_checkpointing() and not is_recomputing()


@pytest.mark.filterwarnings('ignore:.*torch.jit:DeprecationWarning')
def test_a_scripted_layer_is_recomputed_as_any_other() -> None:
    results = []
    for checkpoint in CHECKPOINTS:
        torch.manual_seed(0)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()))
        results.append(train_with([nn.Linear(4, 4), scripted, nn.Linear(4, 4)], checkpoint))
    assert not differences(results[0], results[2]) and not differences(results[1], results[2])
