"""A model of your own for the planner: an nn.Sequential and a sample, counted by torch.

    # nets.py
    def mine():
        return nn.Sequential(...), torch.randn(4, 1, 28, 28)      # the layers, and an input of a few rows

    ./workshop.py plan --model nets.py:mine --gpus 4
"""

import re
import runpy
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fewgpu.balance import LayerCost, profile
from fewgpu.balance.profile import weigh
from fewgpu.balance.sandbox import enter, leave, sandbox, tensors, try_layers
from fewgpu.microbatch import rows_of
from fewgpu.partition import verify_module
from fewgpu.planner.model import Sizes, Model


def own(module: nn.Sequential, sample: Any, *, name: str = 'yours', batch: int = 256) -> Model:
    """What the planner needs to know about a network.

    FLOPs are torch's (matrix products and convolutions; other layers count none); bytes are those that a
    forward really returns and leaves behind for its backward, divided by those of a parameter's number.
    Frozen parameters count as if they were trained, and `about` says so. Neither the module nor the sample is changed.
    Raises TypeError if the module is not an nn.Sequential, or the sample has no tensor, ValueError if there are no
    layers or no rows, or if layers share weights, and whatever a layer raises.
    """
    rows = _rows(sample)
    verify_module(module)
    sizes = weigh(module, sample, device='cpu')
    flops = _flops(module, sample)
    return Model(name, tuple(_layer(str(key), size, work / rows, rows, _bytes(module))
                             for (key, _), size, work in zip(module.named_children(), sizes, flops)),
                 sample=_numbers(sample) / rows, batch=batch, about=_about(module))


def measured(module: nn.Sequential, sample: Any, *, name: str = 'measured', timeout: float = 1.0) -> Model:
    """The same with seconds in place of FLOPs, as this machine takes them for so many rows: for a cluster
    whose devices do one "FLOP" a second (`flops=1, flops32=1, efficiency=1, overhead=0`)."""
    rows = _rows(sample)
    costs = profile(module, sample, timeout=timeout, device='cpu')
    layers = (_layer(str(key), cost, cost.forward / rows, rows, _bytes(module), cost.backward / rows)
              for (key, _), cost in zip(module.named_children(), costs))
    return Model(name, tuple(layers), sample=_numbers(sample) / rows)


def load(reference: str) -> Model:
    """The model of 'FILE.py:FUNCTION', whose function returns (layers, sample). Raises ValueError, in a
    sentence, for a file, a function or a result that will not do."""
    match = re.fullmatch(r'(.+\.py):(\w+)', reference)
    if not match or not Path(match[1]).is_file():
        raise ValueError(f'{reference} is no model of yours: write FILE.py:FUNCTION, of a file that is there')
    try:
        made = runpy.run_path(match[1])
        if match[2] not in made:
            raise ValueError(f'there is no function {match[2]} in {match[1]}')
        result = made[match[2]]()
    except (Exception, SystemExit) as error:
        raise ValueError(f'{reference} cannot be made: {type(error).__name__}: {error}') from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Sequential)):
        raise ValueError(f'{reference} returned {type(result).__name__}: let it return two things, an '
                         f'nn.Sequential and a sample input')
    try:
        return own(*result, name=match[2])
    except (Exception, SystemExit) as error:
        raise ValueError(f'{reference} does not run: {type(error).__name__}: {error}') from error


def _rows(sample: Any) -> int:
    rows = rows_of(sample)
    if not rows:
        raise ValueError('the sample has no rows: give an input of at least one')
    return rows


def _about(module: nn.Sequential) -> str:
    frozen = sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
    said = f'{len(module)} layers'
    return f'{said}, {frozen:,} parameters frozen: counted as if they were trained' if frozen else said


def _layer(name: str, size: LayerCost, work: float, rows: int, number: int,
           backward: float | None = None) -> Sizes:
    return Sizes(name, parameters=size.parameter_bytes / number, flops=work, backward=backward,
                 stash=size.saved_bytes / number / rows, output=size.output_bytes / number / rows)


def _bytes(module: nn.Module) -> int:
    """Bytes of a number: of the first parameter."""
    return next((parameter.element_size() for parameter in module.parameters()), 4)


def _numbers(sample: Any) -> float:
    return float(sum(tensor.numel() for tensor in tensors(sample)))


def _flops(module: nn.Sequential, sample: Any) -> list[int]:
    """Of each layer's forward; copies of the layers run."""
    def visit(layer: nn.Module, value: Any) -> tuple[int, Any]:
        # of fused attention not all kernels are counted
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            output = layer(enter(value))
        return counter.get_total_flops(), leave(output)

    with sandbox('cpu') as device:
        return try_layers(module, sample, device, visit)
