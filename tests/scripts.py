"""How the tests run the MNIST scripts, and look into them."""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from fewgpu.workshop import arguments

ROOT = Path(__file__).resolve().parents[1]
PLAIN, EXERCISE, SOLUTION = 'exercises/mnist_pytorch.py', 'exercises/09_mnist_gpipe.py', 'solutions/09_mnist_gpipe.py'


def run(script: str, *flags: str, gpus: str = '') -> subprocess.CompletedProcess:
    """A run of its own, on virtual devices unless `gpus` are named."""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT / 'lib'), 'CUDA_VISIBLE_DEVICES': gpus}
    return subprocess.run([sys.executable, str(ROOT / script), *flags], cwd=ROOT, env=environment, text=True,
                          capture_output=True, timeout=600)


def module(script: str) -> ModuleType:
    """A script as a module, not run."""
    spec = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def parse(script: str, *flags: str) -> argparse.Namespace:
    return arguments.parse(None, pipeline=script != PLAIN, arguments=flags)
