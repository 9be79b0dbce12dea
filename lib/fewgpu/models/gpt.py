"""A GPT, as a sequence of layers that can be cut between its blocks.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3: a
transformer decoder with layer norm at the input of each part of a block, and one after the last
block. Here the token embedding and the output layer have weights of their own: they sit in the
first and in the last stage.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """Tokens and their positions: N x T (int64) -> N x T x width."""

    def __init__(self, vocabulary: int, width: int, longest: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(longest, width)

    def forward(self, tokens: Tensor) -> Tensor:
        longest, length = self.position.num_embeddings, tokens.shape[1]
        if length > longest:
            raise ValueError(f'sequences of {length} tokens, but the model was built for at most '
                             f'{longest}: gpt(..., longest={length})')
        return self.token(tokens) + self.position.weight[:length]


class Attention(nn.Module):
    """Causal self-attention: N x T x width -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f'a width of {width} cannot be divided into {heads} heads')
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.queries_keys_values(x).chunk(3, dim=-1)
        width = parts[0].shape[-1]   # of all heads that are here; said, and not -1: there may be no rows
        q, k, v = (part.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """Attention and two linear layers, each added to what came in: N x T x width -> the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads),
                                       nn.Dropout(dropout))
        self.linear = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                    nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.linear(x)


def gpt(layers: int = 4, width: int = 128, heads: int = 4, *, vocabulary: int = 256,
        longest: int = 256, dropout: float = 0.0) -> nn.Sequential:
    """N x T tokens (int64) -> N x T x vocabulary logits. Each block is a layer of the sequence.

    Weights start normal with a standard deviation of 0.02, those that add to the residual stream
    smaller by sqrt(2 * layers) (section 2.3), biases at 0.

    Raises ValueError if there is no layer, or if `heads` does not divide `width`.
    """
    if layers < 1:
        raise ValueError(f'a GPT has at least one block, not {layers}')
    model = nn.Sequential(OrderedDict([
        ('embedding', Embedding(vocabulary, width, longest)),
        *((f'block{k + 1}', Block(width, heads, dropout)) for k in range(layers)),
        ('norm', nn.LayerNorm(width)),
        ('logits', nn.Linear(width, vocabulary, bias=False))]))
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    with torch.no_grad():
        for block in model:
            if isinstance(block, Block):
                for linear in (block.attention[1].out, block.linear[3]):
                    linear.weight /= math.sqrt(2 * layers)
    return model


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of the next tokens: logits N x T x vocabulary, tokens N x T (int64)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
