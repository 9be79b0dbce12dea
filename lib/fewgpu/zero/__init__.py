"""ZeRO: replicas share out what each of them would hold again (arXiv 1910.02054).

Read `sizes` (what that saves), `zero` (the model), `gathering` (when parameters come and go), `shards` (flat
tensors that are cut over the ranks).
"""

from fewgpu.zero.sizes import bytes_per_rank
from fewgpu.zero.zero import ZeRO

__all__ = ['ZeRO', 'bytes_per_rank']
