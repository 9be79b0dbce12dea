"""Tensor parallelism: a transformer whose layers are cut over ranks; equal to the plain one, and its traffic counted"""

import torch
from matplotlib.figure import Figure
from rich.table import Table

from fewgpu import launch, plot
from fewgpu.workshop.demos import Show

BATCH, LENGTH, WIDTH, HEADS, WORDS = 4, 32, 96, 12, 240


def demo(show: Show) -> Figure:
    """A GPT of two and of three blocks, plain and on 2 and 3 ranks; P01."""
    show.say(f'A GPT of width {WIDTH} (b = {BATCH} sequences of s = {LENGTH} tokens) is cut over 2 and 3 processes: '
             f'heads, hidden layers and words. Every rank computes with its part; f and g add up what belongs '
             f'together.')
    found = {1: _on_ranks()} | {ranks: launch(_on_ranks, ranks)[0] for ranks in (2, 3)}
    plain = found[1]
    table = Table(title='One training step', title_justify='left')
    for heading in ('ranks', 'parameters a rank', 'bytes sent for a block', '8 b s h (t-1)/t', 'loss',
                    'largest gradient error'):
        table.add_column(heading, justify='right')
    for ranks, one in found.items():
        table.add_row(str(ranks), f"{one['parameters']:,}", f"{one['sent']:,}", f'{_formula(ranks):,.0f}',
                      f"{one['loss']:.6f}", f"{_error(one, plain):.1e}")
    show.table(table)
    sent = {ranks: one['sent'] for ranks, one in found.items()}
    worst = max(_error(one, plain) for one in found.values())
    show.claims.test('P01', moves_as_the_formula(sent, worst),
                     '; '.join(f"{ranks} ranks: {one['sent']:,} bytes, formula {_formula(ranks):,.0f}"
                               for ranks, one in found.items() if ranks > 1)
                     + f'; gradients differ by {worst:.0e} at most',
                     because='Counted at the sends of our ring all-reduce; float32 sums are rounded in another order.')
    return _picture(found)


def moves_as_the_formula(sent: dict[int, int], worst: float) -> bool:
    """P01, by the bytes that were counted, by ranks, and by the largest difference of a gradient."""
    return all(count == _formula(ranks) for ranks, count in sent.items()) and worst < 1e-5


def _on_ranks() -> dict:
    """Of this rank (without torch.distributed: of the plain model): what a step cost and gave."""
    from fewgpu.collectives import Group
    from fewgpu.models import gpt, next_token_loss
    from fewgpu.tensor_parallel import plain_state_dict
    from fewgpu.tensor_transformer import tensor_parallel

    sent, group = [], None
    for layers in (2, 3):   # the difference is one block
        torch.manual_seed(0)
        model = gpt(layers, WIDTH, HEADS, vocabulary=WORDS, longest=LENGTH)
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH))
        if torch.distributed.is_initialized():
            group = Group()
            model = tensor_parallel(model, group)
        loss = next_token_loss(model(tokens), tokens.roll(-1, 1))
        loss.backward()
        sent.append(group.bytes_sent if group else 0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return {'loss': loss.item(), 'sent': sent[1] - sent[0], 'parameters': parameters,
            'gradients': plain_state_dict(model)}


def _formula(ranks: int) -> float:
    """Bytes that a rank sends for a block: arXiv 2104.04473, section 3.2; four bytes an element."""
    return 4 * 8 * BATCH * LENGTH * WIDTH * (ranks - 1) / ranks


def _error(one: dict, plain: dict) -> float:
    """The largest difference of a gradient, as a share of the largest gradient."""
    largest = max(gradient.abs().max().item() for gradient in plain['gradients'].values())
    return max((gradient - plain['gradients'][name]).abs().max().item()
               for name, gradient in one['gradients'].items()) / largest


def _picture(found: dict) -> Figure:
    figure = plot.Picture(figsize=(9.0, 2.6), layout='constrained')
    left, right = figure.subplots(1, 2)
    names = {ranks: f'{ranks} ranks' if ranks > 1 else 'plain' for ranks in found}
    plot.bars({names[ranks]: one['parameters'] / 1e3 for ranks, one in found.items()}, left,
              title='Parameters a rank (thousands)')
    plot.bars({names[ranks]: one['sent'] / 1e3 for ranks, one in found.items()}, right,
              title='Sent for a block, a rank (kB)')
    return figure
