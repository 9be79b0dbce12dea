"""Code written for torchgpipe 0.0.7's GPipe runs on ours, with the import changed.

Where that class is installed, every habit below is tried on both. The differences are on purpose:
names of layers and keys of the state_dict are the plain module's, None and numbers pass through,
in-place layers train, and an error stops the other stages sooner.
"""

import importlib.util
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu import GPipe
from tests.pipes import Call, cut

PEER = importlib.util.find_spec('torchgpipe') is not None


class Text:
    """An object that is only known by its text, as an argument parser's enumeration may be."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def linears(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(1, 1) for _ in range(count)])


def sequence(cls: type) -> list:
    layers = linears(3)
    model = cls(layers, [2, 1], devices=['cpu', 'cpu'])
    places = range(-3, 3)
    return [len(model), list(model) == list(layers), [model[i] is layers[i] for i in places],
            isinstance(model.partitions, nn.ModuleList),
            [(type(part), len(part)) for part in model.partitions]]


def attributes(cls: type) -> list:
    model = cls(linears(1), (1,), devices=('cpu',) * 3, chunks=42.0, checkpoint=Text('always'))
    return [model.balance, model.devices, type(model.devices[0]), model.chunks, type(model.chunks),
            model.checkpoint, type(model.checkpoint), len(list(model.parameters()))]


def pairs(cls: type) -> list:
    model = cut(Call(lambda both: (both[0] * 2, both[1] * 3)), chunks=2, cls=cls)
    inputs = tuple(torch.ones(10, 1, requires_grad=True) for _ in range(2))
    first, second = model(inputs)
    (first + second).sum().backward()
    return [type(model((inputs[0], inputs[1]))), *(x.grad.unique().tolist() for x in inputs)]


def without_gradients(cls: type) -> list:
    model, seen = cut(nn.Linear(1, 1), nn.Linear(1, 1), chunks=2, cls=cls), []
    model.partitions[0].register_forward_hook(lambda part, value, output: seen.append(output))
    with torch.no_grad():
        output = model(torch.rand(2, 1))
    return [output.requires_grad, [value.grad_fn for value in seen]]


def empty(cls: type) -> list:
    model, number = cls(nn.Sequential(), []), torch.tensor(42)
    return [model(number) is number, model((number,)) == (number,), len(model), model.devices]


def casts(cls: type) -> list:
    model = cut(nn.Linear(1, 1), cls=cls)
    return [cast()[0].weight.dtype for cast in (
        model.half, lambda: model.to(torch.double), lambda: model.to(dtype=torch.float))]


def modes(cls: type) -> list:
    model = cut(nn.Dropout(0.5), nn.Dropout(0.5), chunks=2, cls=cls)
    ones, states = torch.ones(64, 8), []
    for mode in (True, False, True):
        model.train(mode)
        states.append(([part.training for part in model.partitions], bool((model(ones) == 0).any())))
    return states


def by_name(cls: type) -> list:
    return [tuple(cut(nn.Linear(3, 2), cls=cls)(input=torch.rand(5, 3)).shape)]


def shares_storage(cls: type) -> list:
    model = cut(*[Call(Identity.apply) for _ in range(2)], checkpoint='always', cls=cls)
    x = torch.rand(42)
    return [torch.equal(model(x), x)]


def no_balance(cls: type) -> None:
    cls(nn.Sequential())


def short_balance(cls: type) -> None:
    cls(linears(2), [1])


def zero_in_balance(cls: type) -> None:
    cls(linears(2), [0, 2], devices=['cpu'] * 2)


def negative_in_balance(cls: type) -> None:
    cls(linears(2), [-1, 3], devices=['cpu'] * 2)


def no_chunks(cls: type) -> None:
    cls(linears(1), [1], devices=['cpu'], chunks=0)


def few_devices(cls: type) -> None:
    cls(linears(4), [1, 1, 1, 1], devices=['cpu'])


def odd_checkpoint(cls: type) -> None:
    cls(linears(1), [1], devices=['cpu'], checkpoint='sometimes')


def no_sequential(cls: type) -> None:
    cls(nn.Linear(1, 1), [1], devices=['cpu'])


def layer_twice(cls: type) -> None:
    layer = nn.Linear(1, 1)
    cls(nn.Sequential(layer, layer), [2], devices=['cpu'])


def parameters_twice(cls: type) -> None:
    layer = nn.Linear(1, 1)
    cls(nn.Sequential(nn.Sequential(layer), nn.Sequential(layer)), [1, 1], devices=['cpu'] * 2)


def beyond_the_end(cls: type) -> None:
    cut(nn.Linear(1, 1), cls=cls)[1]


def before_the_start(cls: type) -> None:
    cut(nn.Linear(1, 1), cls=cls)[-2]


def text_as_input(cls: type) -> None:
    cut(nn.Linear(1, 1), cls=cls)('hello')


def text_beside_input(cls: type) -> None:
    cut(nn.Linear(1, 1), cls=cls)((torch.rand(2, 1), 'hello'))


def text_as_output(cls: type) -> None:
    cut(Call(lambda x: 'hello'), cls=cls)(torch.rand(2, 1))


def number_into_nothing(cls: type) -> None:
    cls(nn.Sequential(), [])(42)


def two_inputs(cls: type) -> None:
    cut(nn.Linear(1, 1), cls=cls)(torch.rand(2, 1), torch.rand(2, 1))


def error_in_a_layer(cls: type) -> None:
    cut(Call(lambda x: x), Call(lambda x: 1 / 0), chunks=3, cls=cls)(torch.rand(3, 1))


HABITS = [sequence, attributes, pairs, without_gradients, empty, casts, modes, by_name,
          shares_storage]
MISTAKES = {   # and the words of that class that programs may look for
    no_balance: (ValueError, 'balance is required'),
    short_balance: (ValueError, 'module and sum of balance have different length '
                                '(module: 2, sum of balance: 1)'),
    zero_in_balance: (ValueError, 'all balance numbers must be positive integer (balance: [0, 2])'),
    negative_in_balance: (ValueError, 'all balance numbers must be positive integer'),
    no_chunks: (ValueError, 'number of chunks must be positive integer'),
    few_devices: (IndexError, 'too few devices to hold given partitions '
                              '(devices: 1, partitions: 4)'),
    odd_checkpoint: (ValueError, "checkpoint is not one of 'always', 'except_last', or 'never'"),
    no_sequential: (TypeError, 'module must be nn.Sequential to be partitioned'),
    layer_twice: (ValueError, 'module with duplicate children is not supported'),
    parameters_twice: (ValueError, 'module with duplicate parameters in distinct children is not '
                                   'supported'),
    beyond_the_end: (IndexError, ''), before_the_start: (IndexError, ''),
    text_as_input: (TypeError, 'expected Tensor'), text_beside_input: (TypeError, 'expected Tensor'),
    text_as_output: (TypeError, 'expected Tensor'),
    number_into_nothing: (TypeError, 'expected Tensor'), two_inputs: (TypeError, ''),
    error_in_a_layer: (ZeroDivisionError, 'division by zero'),
}


@pytest.mark.skipif(not PEER, reason='torchgpipe is not installed')
@pytest.mark.parametrize('habit', HABITS, ids=lambda habit: habit.__name__)
def test_what_code_sees_of_the_class_is_what_it_saw_of_torchgpipe(habit: Callable) -> None:
    import torchgpipe
    assert habit(GPipe) == habit(torchgpipe.GPipe)


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_raises_the_type_and_the_words_that_torchgpipe_raised(mistake: Callable) -> None:
    kind, words = MISTAKES[mistake]
    with pytest.raises(kind) as ours:
        mistake(GPipe)
    assert words in str(ours.value)
    if PEER:
        import torchgpipe
        with pytest.raises(kind) as theirs:
            mistake(torchgpipe.GPipe)
        assert words in str(theirs.value) or words == 'expected Tensor'


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_an_index_means_what_it_means_in_the_sequential(balance: list[int], data) -> None:
    layers = nn.Sequential(*[nn.Identity() for _ in range(sum(balance))])
    model = GPipe(layers, balance, devices=['cpu'] * len(balance))
    index = data.draw(st.integers(-len(layers), len(layers) - 1))
    assert model[index] is layers[index]
    assert [layer for part in model.partitions for layer in part] == list(model)
