"""GPUs to practise on where there are none: tensors stay in the CPU's memory and behave as if they were on `cuda:k`.

    with pretend_gpus(2) as gpus:
        layer = nn.Linear(3, 4).to('cuda:1')
        x = torch.ones(5, 3)
        layer(x)                       # RuntimeError: Expected all tensors to be on the same device, but found at ...
        layer(x.to('cuda:1')).device   # cuda:1
        gpus.moves                     # what was copied from where to where, and how many bytes

Inside, `.to`, `.cuda` and `.cpu`, `device=` and `.device` work as they do with GPUs, also in a backward, in an
optimizer and for views. An operation whose tensors are on different devices raises what CUDA raises. All of it holds
for the thread that has entered, and makes small operations several times slower. `torch.cuda` itself knows nothing of
these GPUs, and neither does a random generator.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fewgpu.workshop.practice.gpu_calls import Calls
from fewgpu.workshop.practice.gpu_kernels import Kernels
from fewgpu.workshop.practice.gpu_state import Move, PretendGpus
from fewgpu.workshop.practice.gpu_torch import also_in_backward

__all__ = ['Move', 'PretendGpus', 'pretend_gpus']


@contextmanager
def pretend_gpus(count: int) -> Iterator[PretendGpus]:
    """Inside, there are that many GPUs, whatever the machine has. Tensors that come from outside are on the CPU."""
    gpus = PretendGpus(count)
    with Kernels(gpus), Calls(gpus) as calls, also_in_backward(calls):
        yield gpus
