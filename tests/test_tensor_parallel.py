"""Layers that are cut over ranks give what the plain layers give, and move as many bytes as the formula says."""

import random

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu import launch
from fewgpu.alike import checksum
from fewgpu.collectives import Group
from fewgpu.models import gpt, next_token_loss
from fewgpu.tensor_parallel import ColumnLinear, Cut, RowLinear, load_plain_state_dict, plain_state_dict
from fewgpu.tensor_transformer import VocabularyEmbedding, tensor_parallel, vocabulary_cross_entropy

CASES = 6


def layers_as_plain(seed: int) -> None:
    """Random sizes: a column and a row layer, alone, one after the other, and put together again."""
    group, sizes = Group(), random.Random(seed)
    for case in range(CASES):
        torch.manual_seed(case)
        rows, inner, outer = sizes.randint(1, 5), *(group.size * sizes.randint(1, 4) for _ in range(2))
        bias = sizes.random() < 0.5
        plain = nn.Sequential(nn.Linear(outer, inner, bias=bias), nn.Tanh(), nn.Linear(inner, outer, bias=bias)).double()
        mine = nn.Sequential(ColumnLinear(plain[0], group), nn.Tanh(), RowLinear(plain[2], group))
        x = torch.randn(rows, 3, outer, dtype=torch.float64)
        check_alike(plain, mine, x)
        gathered = ColumnLinear(plain[0], group, gather=True)
        check_alike(nn.Sequential(plain[0]), nn.Sequential(gathered), x)


def check_alike(plain: nn.Module, mine: nn.Module, x: torch.Tensor) -> None:
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    wanted, found = plain(inputs[0]), mine(inputs[1])
    weights = torch.linspace(-1, 1, wanted.numel(), dtype=x.dtype).view_as(wanted)
    plain.zero_grad()
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    check_gradients(plain, mine)


def check_gradients(plain: nn.Module, mine: nn.Module) -> None:
    with torch.no_grad():   # in the place of the weights, the gradients are gathered as those are
        for parameter in mine.parameters():
            parameter.copy_(parameter.grad)
    whole = plain_state_dict(mine)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(whole[name], parameter.grad)


def small_gpt(group: Group, layers: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return gpt(layers, 12 * group.size, 3 * group.size, vocabulary=5 * group.size, longest=7).double()


def transformer_as_plain() -> None:
    group = Group()
    plain = small_gpt(group)
    tokens = torch.randint(0, 5 * group.size, (3, 6))
    targets = torch.randint(0, 5 * group.size, (3, 6))
    targets[0, :2] = -100   # do not count
    wanted = next_token_loss(plain(tokens), targets)
    plain.zero_grad()
    wanted.backward()
    for whole in (True, False):
        mine = tensor_parallel(plain, group, gather_logits=whole)
        assert plain_state_dict(mine).keys() == plain.state_dict().keys()
        for name, value in plain_state_dict(mine).items():
            assert torch.equal(value, plain.state_dict()[name])
        out = mine(tokens)
        loss = next_token_loss(out, targets) if whole else vocabulary_cross_entropy(out, targets, group)
        loss.backward()
        torch.testing.assert_close(loss, wanted)
        held = sum(parameter.numel() for parameter in mine.parameters())
        cut = sum(p.numel() for n, p in plain.named_parameters() if is_cut(n))
        rest = sum(p.numel() for n, p in plain.named_parameters() if not is_cut(n))
        assert held == cut // group.size + rest
        same_on_all(mine, group)
        check_gradients(plain, mine)


def is_cut(name: str) -> bool:
    cut = ('token.weight', 'queries_keys_values.weight', 'queries_keys_values.bias', 'out.weight', 'linear.1.weight',
           'linear.1.bias', 'linear.3.weight', 'logits.weight')
    return name.endswith(cut)


def same_on_all(mine: nn.Module, group: Group) -> None:
    """Gradients of what is whole on every rank have the same bits on all of them."""
    for name, parameter in mine.named_parameters():
        if not is_cut(name):
            every = [torch.empty_like(parameter.grad) for _ in range(group.size)]
            dist.all_gather(every, parameter.grad)
            assert all(torch.equal(one, every[0]) for one in every), name


def bytes_of_blocks() -> list[int]:
    """What one block more sends, in bytes, in a forward and a backward."""
    sent = []
    for layers in (1, 2):
        group = Group()
        mine = tensor_parallel(small_gpt(group, layers), group)
        tokens = torch.randint(0, 5 * group.size, (3, 7))
        next_token_loss(mine(tokens), tokens).backward()
        sent.append(group.bytes_sent)
    return [sent[1] - sent[0], 12 * group.size]


def saved_and_loaded() -> None:
    group = Group()
    plain = small_gpt(group)
    mine = tensor_parallel(plain, group)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(2).add_(1)
    load_plain_state_dict(mine, plain.state_dict())
    for name, value in plain_state_dict(mine).items():
        assert torch.equal(value, plain.state_dict()[name])


def tied() -> nn.Sequential:
    model = gpt(1, 8, 2, vocabulary=6)
    model.logits.weight = model.embedding.token.weight
    return model


def refused() -> list[str]:
    group, said = Group(), []
    for wrong in (lambda: tensor_parallel(gpt(1, 12, 3), group), lambda: tensor_parallel(nn.Sequential(nn.Linear(2, 2)), group),
                  lambda: ColumnLinear(nn.Linear(4, 3), group),
                  lambda: vocabulary_cross_entropy(torch.zeros(1, 3), torch.tensor([6]), group),
                  lambda: tensor_parallel(tied(), group), lambda: VocabularyEmbedding(nn.Embedding(6, 2, padding_idx=0), group),
                  lambda: tensor_parallel(gpt(1, 8, 2, vocabulary=6), group)[0](torch.tensor([[6]]))):
        with pytest.raises((TypeError, ValueError, IndexError)) as raised:
            wrong()
        said.append(str(raised.value))
    return said


def other_seeds() -> None:
    """All layers start as the first rank's, whatever the others have drawn."""
    group = Group()
    torch.manual_seed(0)
    firsts = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), small_gpt(group)
    torch.manual_seed(group.rank)
    mine = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), small_gpt(group)
    with torch.no_grad():
        for parameter in mine[1].parameters():
            parameter.add_(group.rank)
    cut = nn.Sequential(ColumnLinear(mine[0][0], group), RowLinear(mine[0][1], group)), tensor_parallel(mine[1], group)
    for plain, parts in zip(firsts, cut):
        for name, value in plain_state_dict(parts).items():
            assert torch.equal(value, plain.state_dict()[name]), name


def said_on_all(group: Group, kind: type[Exception], wrong) -> str:
    """What it raises here; nothing is left over: the ranks do the next thing together."""
    before = group.bytes_sent
    with pytest.raises(kind) as raised:
        wrong()
    assert group.bytes_sent == before
    return str(raised.value)


def given_apart() -> list[str]:
    """Everything of which one rank, the last one, has something else: what each rank says."""
    group = Group()
    odd = group.rank == group.size - 1
    model = tensor_parallel(small_gpt(group), group)
    tokens = torch.randint(0, 5 * group.size, (4, 6), generator=torch.Generator().manual_seed(0))
    one_off = tokens.clone()
    one_off[3, 5] = (one_off[3, 5] + odd) % (5 * group.size)
    logits, layer = torch.zeros(4, 6, 5), ColumnLinear(nn.Linear(4, 6), group)
    return [said_on_all(group, ValueError, wrong) for wrong in (
        lambda: model(tokens[:4 - odd]), lambda: model(tokens[:, :6 - odd]), lambda: model(one_off),
        lambda: vocabulary_cross_entropy(logits, one_off, group),
        lambda: vocabulary_cross_entropy(logits[:4 - odd], tokens[:4 - odd], group),
        lambda: layer(torch.zeros(3 - odd, 4)), lambda: layer(torch.zeros(4) if odd else torch.zeros(1, 4)),
        lambda: ColumnLinear(nn.Linear(4, 6, bias=not odd), group),
        lambda: RowLinear(nn.Linear(12 if odd else 6, 4), group),
        lambda: tensor_parallel(small_gpt(group, 2 + odd), group),
        lambda: tensor_parallel(small_gpt(group).float() if odd else small_gpt(group), group))
    ] + [f'{model(tokens).shape[0]}']


def everything() -> tuple:
    for seed in range(2):
        layers_as_plain(seed)
    transformer_as_plain()
    other_seeds()
    saved_and_loaded()
    return bytes_of_blocks()


@pytest.mark.slow
@pytest.mark.parametrize('ranks', (1, 2, 3))
def test_cut_layers_equal_plain_ones_and_move_8bsh_t_minus_1_over_t(ranks: int) -> None:
    for sent, width in launch(everything, ranks):
        elements = 8 * 3 * 7 * width * (ranks - 1) / ranks
        assert sent == 8 * elements   # of 8 bytes


@pytest.mark.slow
def test_what_cannot_be_cut_is_refused_with_a_remedy() -> None:
    for said in launch(refused, 2):
        assert 'heads cannot be shared out' in said[0] and 'blocks of fewgpu.models.gpt' in said[1]
        assert 'choose a number of ranks that divides it' in said[2] and 'targets are from 0 to 5' in said[3]
        assert 'duplicate parameters' in said[4] and 'padding_idx' in said[5] and 'tokens are from 0 to 5' in said[6]


@pytest.mark.slow
@pytest.mark.parametrize('ranks', (2, 3))
def test_ranks_that_are_given_other_rows_numbers_or_models_are_all_told_so(ranks: int) -> None:
    others = ''.join(f'rank {r} 4 x 6, ' for r in range(ranks - 1))
    for said in launch(given_apart, ranks):
        assert f'different tokens: {others}rank {ranks - 1} 3 x 6: give' in said[0]
        assert f'different tokens: {others}rank {ranks - 1} 4 x 5: give' in said[1]
        assert 'different tokens: 4 x 6 each, but not the same numbers' in said[2]
        assert 'different targets: 4 x 6 each, but not the same numbers' in said[3]
        assert f'different targets: {others}rank {ranks - 1} 3 x 6' in said[4]
        assert 'different inputs: rank 0 3 x 4' in said[5] and f'rank {ranks - 1} 2 x 4' in said[5]
        assert 'different inputs: rank 0 1 x 4' in said[6] and f'rank {ranks - 1} 4: give' in said[6]
        assert all('the ranks have different modules' in one for one in said[7:11])
        assert said[11] == '4'   # they go on together


def test_a_checksum_is_of_the_numbers_and_not_of_how_they_lie_in_memory() -> None:
    every = torch.arange(24).reshape(4, 6)
    for part in (every[::2], every[:, 1], every.t(), every[0, ::3][:1], every[0, :1].expand(4), every[0, 0],
                 every > 3):
        assert checksum([part]) == checksum({'y': part.clone(memory_format=torch.contiguous_format)})
    assert checksum(every[::2, 0]) != checksum(every[1::2, 0]) and checksum(every / 2) == checksum(None)


@pytest.mark.parametrize('cut', (Cut(), Cut(1), Cut(0, 3), Cut(1, 2)))
def test_the_shares_of_all_ranks_are_the_whole(cut: Cut) -> None:
    class Place:
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

    whole = torch.arange(144).view(12, 12).float()
    shares = [cut.own(whole, Place(rank)).detach() for rank in range(2)]

    assert sorted(torch.cat(shares).flatten().tolist()) == whole.flatten().tolist()
    assert all(share.numel() == 72 for share in shares)
