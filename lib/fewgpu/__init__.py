"""fewgpu: train networks that do not fit, or are too slow, on the few GPUs you have.

Importing this module imports no torch: a name is fetched from its own module when it is first asked for.
So `import fewgpu` takes milliseconds, and `from fewgpu import GPipe` brings in what GPipe needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewgpu.data_parallel import DataParallel
    from fewgpu.device import Device, get_devices
    from fewgpu.gpipe import GPipe
    from fewgpu.launch import launch
    from fewgpu.model_parallel import ModelParallel
    from fewgpu.offload import Offloaded
    from fewgpu.pipeline import Pipeline
    from fewgpu.recompute import is_checkpointing, is_recomputing
    from fewgpu.spill import Spilled
    from fewgpu.zero import ZeRO

__all__ = ['DataParallel', 'Device', 'GPipe', 'ModelParallel', 'Offloaded', 'Pipeline', 'Spilled', 'ZeRO',
           'get_devices', 'is_checkpointing', 'is_recomputing', 'launch']

_HOME = {
    'DataParallel': 'fewgpu.data_parallel',
    'Device': 'fewgpu.device',
    'GPipe': 'fewgpu.gpipe',
    'ModelParallel': 'fewgpu.model_parallel',
    'Offloaded': 'fewgpu.offload',
    'Pipeline': 'fewgpu.pipeline',
    'Spilled': 'fewgpu.spill',
    'ZeRO': 'fewgpu.zero',
    'get_devices': 'fewgpu.device',
    'is_checkpointing': 'fewgpu.recompute',
    'is_recomputing': 'fewgpu.recompute',
    'launch': 'fewgpu.launch',
}


def __getattr__(name: str) -> Any:
    """Fetch `name` from the module that defines it (PEP 562), and remember it."""
    if name not in _HOME:
        raise AttributeError(f"module 'fewgpu' has no attribute '{name}'; it offers {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
