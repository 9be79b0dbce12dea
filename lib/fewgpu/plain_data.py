"""What a file may hold that is read without running anything in it: tensors and plain data."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

# What torch.load(weights_only=True) reads.
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_LEAVES = (torch.Tensor, nn.Parameter, bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype,
           torch.device)


_MOST_DEEP = 100


def verify_plain(value: Mapping[str, Any] | Any, where: str, deep: int = 0) -> None:
    """Raises TypeError, naming the place, for what could not be read again."""
    if deep > _MOST_DEEP:
        raise TypeError(f'{where[:60]}... is nested more than {_MOST_DEEP} deep (does it hold itself?): a checkpoint '
                        f'holds flat data')
    if type(value) in _CONTAINERS:
        for key in value if isinstance(value, dict) else ():
            verify_plain(key, f'a key of {where}', deep + 1)
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            verify_plain(part, f'{where}[{key!r}]', deep + 1)
    elif type(value) not in _LEAVES:
        raise TypeError(f'{where} is a {type(value).__name__}: a checkpoint holds tensors and plain data only: save '
                        f'its state_dict(), or a float, list or dict of it')
