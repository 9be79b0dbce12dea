"""A run of the learner's script, and the loss that it has to end with."""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fewgpu import data, models
from fewgpu.microbatch import scatter, sizes
from fewgpu.workshop.graders.built import flags
from fewgpu.workshop.grading.work import Work


def run_to_report(work: Work, text: str) -> dict[str, Any]:
    """What the script's `main`, run with these flags, reports."""
    with tempfile.TemporaryDirectory(prefix='grading-') as folder:
        file = Path(folder, 'report.json')
        before, sys.argv = sys.argv, ['09_mnist_gpipe.py', *text.split(), '--report', str(file)]
        try:
            with contextlib.redirect_stdout(io.StringIO()):   # its log would stand in the middle of the verdict
                work.main()
        finally:
            sys.argv = before
        return json.loads(file.read_text(encoding='utf-8'))


def plain_loss(text: str) -> float:
    """The loss of the last mini-batch, of the plain model, which takes one micro-batch after the other."""
    args = flags(text)
    torch.manual_seed(args.seed)
    model = models.build(args.arch)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)
    samples = data.subset(data.load('train'), args.samples, seed=args.seed)
    for x, y in DataLoader(samples, args.batchsize, shuffle=True, generator=torch.Generator().manual_seed(args.seed)):
        optimizer.zero_grad()
        rows = sizes(len(x), args.num_microbatches)
        outputs = [model(part) for part in scatter(x, args.num_microbatches)]
        pairs = zip(outputs, y.split(rows))
        loss = sum(F.cross_entropy(output, target) * len(target) / len(x) for output, target in pairs)
        loss.backward()
        optimizer.step()
    return loss.item()


def begins_as_the_seed_says(model: nn.Module, text: str) -> bool:
    """Has a model the weights that a new one has with these flags?"""
    args = flags(text)
    torch.manual_seed(args.seed)
    plain, mine = models.build(args.arch).state_dict(), model.state_dict()
    return plain.keys() == mine.keys() and all(torch.equal(plain[key], mine[key].cpu()) for key in plain)
