"""The examples in docstrings run, and what docstrings refer to exists."""

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import fewgpu
from fewgpu import hybrid, tensor_parallel, tensor_transformer
from fewgpu.launch import launch

ON_RANKS = {'DataParallel': fewgpu.DataParallel, 'ZeRO': fewgpu.ZeRO, 'parallelize': hybrid.parallelize,
            'tensor_parallel': tensor_transformer.tensor_parallel, 'ColumnLinear': tensor_parallel.ColumnLinear}
ALONE = {'Spilled': fewgpu.Spilled, 'Offloaded': fewgpu.Offloaded}
OTHERS = {name: getattr(fewgpu, name) for name in fewgpu.__all__ if name not in {*ON_RANKS, *ALONE}}   # may have one


def usage(thing: Any) -> str:
    """The code of an example: what is indented below 'Usage::', or ''."""
    found = re.search(r'^Usage::\n\n((?:(?: {4}.*)?\n)+)', f'{inspect.getdoc(thing)}\n', re.MULTILINE)
    return textwrap.dedent(found[1]) if found else ''


def names() -> dict[str, Any]:
    """What an example may use without making it: the kit's names, a small network, and rows to train it on."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    kit = [importlib.import_module(f'fewgpu.{part}') for part in (
        'group', 'models.gpt', 'hybrid', 'tensor_parallel', 'tensor_transformer', 'offload', 'spill')]
    return {'torch': torch, 'nn': nn, **{name: value for part in kit for name, value in vars(part).items()},
            **{name: getattr(fewgpu, name) for name in fewgpu.__all__}, 'module': module, 'model': module,
            'x': x, 'y': y, 'batches': [(x, y)] * 2, 'loss_fn': nn.functional.mse_loss,
            'tokens': torch.randint(256, (2, 5))}


def run(code: str) -> None:
    """An example that ends with a loss ends with a number."""
    place = names()
    exec(compile(code, '<usage>', 'exec'), place)
    assert torch.isfinite(place.get('loss', torch.zeros(())))


def run_all(codes: list[str]) -> None:
    for code in codes:
        run(code)


@pytest.mark.parametrize('name', [*ALONE, *(name for name, thing in OTHERS.items() if usage(thing))])
def test_the_example_of_a_class_runs(name: str) -> None:
    code = usage((ALONE | OTHERS)[name])
    assert code
    run(code)


def test_the_examples_for_ranks_run() -> None:
    codes = [usage(thing) for thing in ON_RANKS.values()]
    assert all(codes)
    launch(run_all, 2, args=(codes,), time_limit=120)


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(fewgpu.__path__, 'fewgpu.'):
        if not found.name.startswith('fewgpu.workshop') and not found.name.endswith('__main__'):
            yield importlib.import_module(found.name)


def is_there(path: str) -> bool:
    """A module, or something in one."""
    parts, thing = path.split('.'), fewgpu
    for k, part in enumerate(parts[1:], 2):
        try:
            thing = importlib.import_module('.'.join(parts[:k]))
        except ImportError:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
    return True


def test_what_docstrings_refer_to_exists() -> None:
    missing = [f'{module.__name__}: {path}' for module in modules()
               for path in re.findall(r'fewgpu(?:\.\w+)+', inspect.getsource(module)) if not is_there(path)]
    assert not missing
    assert not is_there('fewgpu.pilot') and not is_there('fewgpu.spill.other') and is_there('fewgpu.spill.pilot')
