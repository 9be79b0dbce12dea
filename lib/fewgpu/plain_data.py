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


def verify_plain(value: Mapping[str, Any] | Any, where: str) -> None:
    """Raises TypeError, naming the place, for what could not be read again."""
    if type(value) in _CONTAINERS:
        for key in value if isinstance(value, dict) else ():
            verify_plain(key, f'a key of {where}')
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            verify_plain(part, f'{where}[{key!r}]')
    elif type(value) not in _LEAVES:
        raise TypeError(f'{where} is a {type(value).__name__}: a checkpoint holds tensors and plain data only: save '
                        f'its state_dict(), or a float, list or dict of it')
