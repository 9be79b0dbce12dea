"""A Pipeline on ranks: under launch and under torchrun, its errors, its trace, links and paces."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu import Device, Pipeline, launch
from fewgpu.launch import RankDied
from fewgpu.link import Link
from fewgpu.schedule import one_f_one_b, with_messages, with_updates

ROOT = Path(__file__).resolve().parents[1]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).double()


def pipeline(**options) -> Pipeline:
    return Pipeline(network(), [2, 2], chunks=4, loss_fn=nn.functional.mse_loss, **options)


def batch(rows: int = 8) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(2, rows, 4, dtype=torch.float64)


def traced() -> tuple:
    slow = [Device(index=dist.get_rank(), link=Link(latency=0.02), pace=0.5)]
    pipe = pipeline(devices=slow)
    losses = [pipe.step(*batch(rows)).item() for rows in (8, 3)]
    both = pipe.gather_trace()
    spans = [[(str(span.op), span.op.message, span.start, span.end) for span in row]
             for row in both.rows]
    return losses, spans, both.names


def test_the_trace_of_all_ranks_is_on_one_clock_and_a_linearisation() -> None:
    first, second = launch(traced)
    assert first == second
    losses, spans, names = first
    plain = network()
    expected = [nn.functional.mse_loss(plain(x), y).item() for x, y in (batch(8), batch(3))]
    torch.testing.assert_close(losses, expected)
    schedule = with_messages(with_updates(one_f_one_b(2, 3)), targets=True)
    assert [[name for name, *_ in row] for row in spans] == [[str(op) for op in row]
                                                             for row in schedule.rows]
    assert names == ('rank 0', 'rank 1')
    sent = {message: start for row in spans for name, message, start, _ in row
            if message and '>' in name}
    waited = [end - sent[message] for row in spans for name, message, _, end in row
              if message in sent and '<' in name]
    assert len(waited) == 2 * 3 and min(waited) >= 0.02   # the latency of the link


class Mistake(ValueError):
    """A learner's."""


def mistaken(where: str) -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise Mistake(where)

    model = network()
    model[0 if where == 'first' else 3] = Wrong()
    Pipeline(model, [2, 2], chunks=2, loss_fn=nn.functional.mse_loss).step(*batch())


@pytest.mark.parametrize('where', ['first', 'last'])
def test_launch_raises_the_error_of_the_rank_that_made_it(where: str) -> None:
    """Not that of a rank which tells that another has failed, though it may be there first."""
    with pytest.raises(Mistake, match=where) as caught:
        launch(mistaken, args=(where,))
    notes = '\n'.join(caught.value.__notes__)
    assert f'raised in rank {int(where == "last")} of 2' in notes
    assert 'forward of micro-batch 0' in notes


def uneven() -> float:
    pipe = pipeline()
    return pipe.step(*batch(8 - dist.get_rank())).item()


def test_ranks_with_different_mini_batches_say_so() -> None:
    with pytest.raises(ValueError, match='this rank was given 7 rows, the rank of the first stage 8'):
        launch(uneven)


def different(what: str) -> str:
    options = {'balance': [1, 3], 'chunks': 4, 'optimizer': None}
    if dist.get_rank():
        options |= {'balance': {'balance': [3, 1]}, 'chunks': {'chunks': 2},
                    'an optimizer': {'optimizer': torch.optim.SGD}}[what]
    try:
        Pipeline(network(), loss_fn=nn.functional.mse_loss, **options).step(*batch())
    except Exception as error:
        return str(error)
    return ''


def all_differences() -> list[str]:
    return [different(what) for what in ('balance', 'chunks', 'an optimizer')]


def test_ranks_that_make_different_pipelines_say_what_differs() -> None:
    for of_rank in launch(all_differences):
        for what, said in zip(('balance', 'chunks', 'an optimizer'), of_rank):
            assert f'{what}: ' in said and 'on rank 1' in said and 'the same Pipeline' in said


def exits() -> None:
    if dist.get_rank():
        sys.exit(0)


def test_a_rank_that_exits_does_not_end_the_program() -> None:
    with pytest.raises(RankDied, match=r'rank 1 of 2 called sys.exit\(0\)'):
        launch(exits)


SCRIPT = '''
import sys
import torch
from torch import nn
from fewgpu import Pipeline
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).double()
pipeline = Pipeline(model, [2, 2], chunks=4, loss_fn=nn.functional.mse_loss)
torch.manual_seed(1)
x, y = torch.rand(2, 8, 4, dtype=torch.float64)
loss, tensors = pipeline.step(x, y).item(), len(list(pipeline.parameters()))
sys.stdout.write(f'loss {loss} tensors {tensors}\\n')   # at once: print writes piece by piece, and so does the other rank
'''


@pytest.mark.slow
def test_under_torchrun_each_rank_holds_its_stage(tmp_path) -> None:
    script = tmp_path / 'train.py'
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone',
                           '--nproc-per-node', '2', str(script)], capture_output=True, text=True,
                          cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    x, y = batch()
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith('loss')]
    assert [line[3] for line in lines] == ['4', '4']
    for line in lines:
        assert float(line[1]) == pytest.approx(nn.functional.mse_loss(network()(x), y).item())
