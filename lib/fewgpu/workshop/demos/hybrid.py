"""HyPar-Flow's idea: data, model and tensor parallelism on a grid of ranks by one call, equal to sequential SGD"""

import torch
from matplotlib.figure import Figure
from rich.table import Table

from fewgpu import launch, plot
from fewgpu.workshop.demos import Show

STRATEGIES = ('4x1', '2x2', '1x4', '2x1x2', '1x2x2')   # replicas x stages (x tensor-parallel parts)
STEPS, ROWS, LENGTH, WORDS = 10, 16, 16, 32


def demo(show: Show) -> Figure:
    """The same script on four ranks, by each strategy; P02."""
    show.say(f"Four processes train a small GPT for {STEPS} steps: hybrid.parallelize(model, '2x2', ...) is all that "
             f'differs from a plain script. 2x2 are two replicas of a pipeline of two stages; a third factor cuts '
             f'every layer into tensor-parallel parts.')
    losses, weights = _sequential()
    ranks = launch(_on_the_grid, 4)
    table = Table(title='The same script, on four ranks', title_justify='left')
    for heading in ('strategy', 'replicas', 'stages', 'parts', 'parameters a rank (most)', 'last loss',
                    'weights differ by'):
        table.add_column(heading, justify='right')
    table.add_row('sequential', '1', '1', '1', f'{sum(w.numel() for w in weights.values()):,}', f'{losses[-1]:.5f}', '')
    differences = {}
    for strategy in STRATEGIES:
        of_ranks = [rank[strategy] for rank in ranks]
        differences[strategy] = max(_difference(one['weights'], weights) for one in of_ranks)
        factors = [*strategy.split('x'), '1'][:3]
        table.add_row(strategy, *factors, f"{max(one['held'] for one in of_ranks):,}",
                      f"{of_ranks[0]['losses'][-1]:.5f}", f'{differences[strategy]:.1e}')
    show.table(table)
    worst = max(differences, key=differences.get)
    show.claims.test('P02', is_sequential(differences),
                     f'after {STEPS} steps of SGD with momentum, weights of {len(STRATEGIES)} strategies differ from '
                     f"the sequential ones by {differences[worst]:.0e} at most ({worst})",
                     because='Sums of float32 numbers are rounded in another order. The paper adds its speeds (481 '
                             'times on 512 nodes, published), which four processes on a laptop cannot show.')
    return _picture({'sequential': losses} | {s: ranks[0][s]['losses'] for s in STRATEGIES},
                    {s: max(rank[s]['held'] for rank in ranks) for s in STRATEGIES})


def is_sequential(differences: dict[str, float]) -> bool:
    """P02, by how far a weight is from the sequential one, at most, by strategy."""
    return max(differences.values()) < 1e-5


def _model() -> torch.nn.Sequential:
    from fewgpu.models import gpt

    torch.manual_seed(0)
    return gpt(4, 48, 4, vocabulary=WORDS, longest=LENGTH)


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences that count upwards, each in steps of its own; the same ones in every training step."""
    torch.manual_seed(1)
    starts, strides = (torch.randint(0, 4, (ROWS, 1)) for _ in range(2))
    tokens = (starts + strides * torch.arange(LENGTH + 1)) % WORDS
    return [(tokens[:, :-1], tokens[:, 1:])] * STEPS


def _sgd(parameters) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _sequential() -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the weights of a plain script."""
    from fewgpu.models import next_token_loss

    model, losses = _model(), []
    optimizer = _sgd(model.parameters())
    for x, y in _batches():
        loss = next_token_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def _on_the_grid() -> dict[str, dict]:
    """Of this rank, by strategy: the losses, the weights of its stage (whole), and how many numbers it holds."""
    from fewgpu import hybrid
    from fewgpu.models import next_token_loss
    from fewgpu.tensor_parallel import plain_state_dict

    found = {}
    for strategy in STRATEGIES:
        trainer = hybrid.parallelize(_model(), strategy, loss_fn=next_token_loss, optimizer=_sgd)
        grid = hybrid.Grid.of(strategy, torch.distributed.get_world_size())
        replica, _, _ = grid.place(torch.distributed.get_rank())
        losses = [trainer.step(*(part.chunk(grid.replicas)[replica] for part in batch)).item() for batch in _batches()]
        found[strategy] = {'losses': losses, 'weights': plain_state_dict(trainer.module),
                           'held': sum(p.numel() for p in trainer.parameters())}
        trainer.close()
    return found


def _difference(some: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    return max((value - plain[name]).abs().max().item() for name, value in some.items())


def _picture(losses: dict[str, list[float]], held: dict[str, int]) -> Figure:
    figure = plot.Picture(figsize=(10.0, 3.2), layout='constrained')
    left, right = figure.subplots(1, 2)
    steps = range(1, STEPS + 1)
    plot.lines({name: (steps, losses[name]) for name in ('sequential', '2x2')}, left,
               title='Loss, one line over the other', x='step', y='loss')
    plot.bars({name: count / 1e3 for name, count in held.items()}, right,
              title='Parameters a rank, at most (thousands)')
    return figure
