"""A training run on ranks that goes on from its last checkpoint, until it is killed or has come to an end.

    python -m tests.killed_training FOLDER RANKS LAST                 by `launch`
    torchrun --nproc-per-node RANKS tests/killed_training.py FOLDER RANKS LAST

Each rank tells when it begins and after each step; the one that knows the loss appends it to FOLDER/losses.
"""

import os
import sys
import warnings
from pathlib import Path

from fewgpu.launch import launch

EVERY = 2   # steps from one checkpoint to the next


def tell(line: str) -> None:
    """In one piece: `print` may write the end of the line after what another rank writes meanwhile."""
    sys.stdout.write(f'{line}\n')
    sys.stdout.flush()


def train(folder: str, last: int) -> None:
    import torch

    from fewgpu.checkpoint import Checkpoints, load_training_state, training_state
    from tests.runs import ON_RANKS, adam, network

    warnings.filterwarnings('error', message='the checkpoint')   # none is damaged, whenever the run before was killed
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run, done = ON_RANKS['1f1b'](network(), adam, 2), 0
    checkpoints = Checkpoints(Path(folder, 'checkpoints'))
    if saved := checkpoints.latest():
        load_training_state(saved, run.model)
        done = saved.step
    log = os.open(Path(folder, 'losses'), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tell(f'begins after {done}')
    for step in range(done + 1, last + 1):
        generator = torch.Generator().manual_seed(step)
        loss = run.step(torch.randn(8, 4, dtype=torch.float64, generator=generator),
                        torch.randn(8, 2, dtype=torch.float64, generator=generator))
        if int(os.environ['RANK']) == 0:
            os.write(log, f'{step} {loss!r}\n'.encode())
        if step % EVERY == 0:
            checkpoints.save(step, training_state(run.model))
        tell(f'step {step}')


if __name__ == '__main__':
    folder, ranks, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if 'TORCHELASTIC_RUN_ID' in os.environ:
        train(folder, last)
    else:
        from tests.killed_training import train
        launch(train, ranks, args=(folder, last), time_limit=300)
