"""A transformer on the ranks of a group: attention by heads, an MLP by its hidden layer, words by vocabulary.

Shoeybi et al. 2019 (arXiv 1909.08053), section 3: one all-reduce in the forward and one in the backward,
for the attention and for the MLP each; the embedding and the last layer are cut by words.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fewgpu.alike import take_first, verify_given_same, verify_same
from fewgpu.collectives import Group, all_reduce
from fewgpu.models.gpt import Attention, Block, Embedding
from fewgpu.partition import verify_module
from fewgpu.tensor_parallel import ColumnLinear, Cut, RowLinear, Sharded, sum_over_ranks


class HeadsAttention(nn.Module):
    """Causal self-attention of this rank's heads: N x T x width -> the same, on all ranks.

    Raises ValueError if the heads cannot be shared out evenly.
    """

    def __init__(self, attention: Attention, group: Group) -> None:
        super().__init__()
        if attention.heads % group.size:
            raise ValueError(f'{attention.heads} heads cannot be shared out to {group.size} ranks evenly: choose a '
                             f'number of ranks that divides it')
        self.heads = attention.heads // group.size
        self.queries_keys_values = ColumnLinear(attention.queries_keys_values, group, sections=3)
        self.out = RowLinear(attention.out, group)

    forward = Attention.forward   # only with fewer heads, and less of the width behind them


class VocabularyEmbedding(Sharded):
    """Tokens to vectors, the words cut over ranks: N x T (int64) -> N x T x width, the same on all ranks."""

    def __init__(self, embedding: nn.Embedding, group: Group) -> None:
        if (embedding.padding_idx is not None or embedding.max_norm is not None or embedding.scale_grad_by_freq
                or embedding.sparse):
            raise ValueError('an embedding that is cut by words has no padding_idx, max_norm, scale_grad_by_freq or '
                             'sparse gradients: leave those options out')
        super().__init__(group, weight=Cut(0))
        self.words = embedding.num_embeddings
        self.take('weight', embedding.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        self.verify('tokens', tokens)
        if tokens.device.type == 'cpu' and bool(((tokens < 0) | (tokens >= self.words)).any()):   # a GPU would wait
            raise IndexError(f'tokens are from 0 to {self.words - 1}; there are some from {int(tokens.min())} to '
                             f'{int(tokens.max())}')
        mine, own = _own_words(tokens, self.weight.shape[0], self.group)
        vectors = nn.functional.embedding(own, self.weight)
        return sum_over_ranks(vectors * mine.unsqueeze(-1), self.group)


def _own_words(tokens: Tensor, count: int, group: Group) -> tuple[Tensor, Tensor]:
    """Which tokens are among this rank's words, and their numbers there (0 for the others)."""
    own = tokens - group.rank * count
    mine = (own >= 0) & (own < count)
    return mine, own.where(mine, 0)


class _CrossEntropy(torch.autograd.Function):
    """Of logits whose vocabulary is cut, a loss a token: three all-reduces of one number a token, instead of
    the logits. Tokens that are not `counted` have a loss of 0."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, counted: Tensor, group: Group) -> Tensor:
        largest = logits.amax(-1)
        all_reduce(largest, group, 'max')
        shifted = logits - largest.unsqueeze(-1)
        powers = shifted.exp()
        total = powers.sum(-1)
        all_reduce(total, group)
        mine, own = _own_words(targets, logits.shape[-1], group)
        wanted = shifted.gather(-1, own.unsqueeze(-1)).squeeze(-1) * mine
        all_reduce(wanted, group)
        ctx.save_for_backward(powers / total.unsqueeze(-1), mine, own, counted)
        return (total.log() - wanted).where(counted, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, mine, own, counted = ctx.saved_tensors
        ones = mine.unsqueeze(-1).to(probabilities.dtype)
        hit = torch.zeros_like(probabilities).scatter_(-1, own.unsqueeze(-1), ones)
        return (probabilities - hit) * (gradient * counted).unsqueeze(-1), None, None, None


def vocabulary_cross_entropy(logits: Tensor, targets: Tensor, group: Group, *, ignore_index: int = -100) -> Tensor:
    """The mean cross entropy from this rank's part of the logits, in float32 at least.

    logits: ... x vocabulary/size, targets: ... (int64, of the whole vocabulary) -> a scalar, the same on all
    ranks. As of nn.functional.cross_entropy targets of `ignore_index` do not count.

    Raises IndexError for other targets that are no word (where tensors are on the CPU: a GPU would wait), ValueError,
    on all ranks, if they are given other targets.
    """
    verify_given_same('targets', targets, Group(group.process_group, group.time_limit))
    words = logits.shape[-1] * group.size
    counted = targets != ignore_index
    if targets.device.type == 'cpu' and bool((((targets < 0) | (targets >= words)) & counted).any()):
        raise IndexError(f'targets are from 0 to {words - 1}, or {ignore_index} for those that do not count; there '
                         f'are some from {int(targets.min())} to {int(targets.max())}')
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return _CrossEntropy.apply(logits, targets, counted, group).sum() / counted.sum()


def tensor_parallel(model: nn.Sequential, group: Group, *, gather_logits: bool = True) -> nn.Sequential:
    """This rank's part of a GPT (`fewgpu.models.gpt`), with the same names; `model` stays as it is.

    Usage::

        model = tensor_parallel(gpt(2, 16), Group())    # on every rank, from the same plain model
        loss = next_token_loss(model(tokens), tokens)   # of the same tokens
        loss.backward()

    With `gather_logits` the outputs are whole on every rank, as the plain model's; without, they are this rank's
    part of the vocabulary, for `vocabulary_cross_entropy`. All ranks of the group make the same model, and start with
    the weights of the group's first rank. The first layer looks whether all are given the same tokens (ValueError).

    Raises TypeError for a model that is no GPT, ValueError if heads, hidden layers or words cannot be shared out
    evenly, if two layers share weights, or (on all ranks) if the ranks' models differ.
    """
    verify_module(model)
    if not any(isinstance(layer, Block) for layer in model):
        raise TypeError('tensor_parallel cuts the blocks of fewgpu.models.gpt, and this model has none: build other '
                        'layers from ColumnLinear and RowLinear')
    notes = Group(group.process_group, group.time_limit)
    verify_same(_state(model), notes)
    layers = copy.deepcopy(model)
    for name, layer in layers.named_children():
        if isinstance(layer, Embedding):
            layer.token = VocabularyEmbedding(layer.token, group)
        elif isinstance(layer, Block):
            layer.attention[1] = HeadsAttention(layer.attention[1], group)
            layer.linear[1] = ColumnLinear(layer.linear[1], group)
            layer.linear[3] = RowLinear(layer.linear[3], group)
        elif isinstance(layer, nn.Linear):   # the logits
            setattr(layers, name, ColumnLinear(layer, group, gather=gather_logits))
    own = {id(parameter) for part in layers.modules() if isinstance(part, Sharded) for parameter in part.parameters()}
    take_first([(key, tensor) for key, tensor in _state(layers) if id(tensor) not in own], notes)
    for part in [part for part in layers.modules() if isinstance(part, Sharded)][1:]:
        part.verifies = False   # the first one has
    return layers


def _state(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]
