"""The small GPT: causal, sized as published, cut anywhere, and it learns."""

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fewgpu.models import gpt, next_token_loss

SMALL = {'vocabulary': 11, 'longest': 8}


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 7))
def test_no_token_sees_a_later_one(layers: int, length: int, changed: int) -> None:
    model = gpt(layers, 8, 2, **SMALL).double()
    tokens = torch.randint(11, (2, length))
    other = tokens.clone()
    other[:, min(changed, length - 1):] = torch.randint(11, other[:, min(changed, length - 1):].shape)
    before = min(changed, length - 1)
    torch.testing.assert_close(model(tokens)[:, :before], model(other)[:, :before])
    assert model(tokens).shape == (2, length, 11)


@given(st.integers(1, 6), st.sampled_from([4, 16, 64]), st.integers(2, 300), st.integers(1, 99))
def test_the_parameters_are_counted_by_the_formula(layers: int, width: int, vocabulary: int,
                                                   longest: int) -> None:
    """12 l h^2 (1 + 13 / 12h + (V + s) / 12lh) of arXiv 2104.04473, and here V h more for the output
    layer, which has weights of its own, and 2h for the last layer norm."""
    with torch.device('meta'):
        model = gpt(layers, width, 2, vocabulary=vocabulary, longest=longest)
    count = sum(parameter.numel() for parameter in model.parameters())
    published = 12 * layers * width ** 2 + 13 * layers * width + (vocabulary + longest) * width
    assert count == published + vocabulary * width + 2 * width


def test_it_learns_a_sequence_by_heart() -> None:
    model = gpt(2, 16, 2, **SMALL)
    tokens = torch.randint(11, (4, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        loss = next_token_loss(model(tokens)[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 1.0   # a guess costs log(11) = 2.4; the first token is not known from anything
    assert copy.deepcopy(model)(tokens).argmax(-1)[:, 1:-1].eq(tokens[:, 2:]).float().mean() > 0.8


@pytest.mark.parametrize('options, message', [
    ({'layers': 0}, 'at least one block'), ({'width': 6, 'heads': 4}, 'cannot be divided into 4')])
def test_sizes_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpt(**options)


def test_too_long_a_sequence_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r'gpt\(\.\.\., longest=9\)'):
        gpt(1, 8, 2, **SMALL)(torch.zeros(1, 9, dtype=torch.int64))


@given(st.integers(0, 3), st.integers(1, 5), st.sampled_from((1, 2, 4)))
def test_there_may_be_no_rows(rows: int, length: int, heads: int) -> None:
    model = gpt(1, 8, heads, vocabulary=6, longest=5)
    logits = model(torch.zeros(rows, length, dtype=torch.int64))
    logits.sum().backward()

    assert logits.shape == (rows, length, 6)
    assert all(bool((parameter.grad == 0).all()) == (rows == 0) for parameter in model.logits.parameters())
