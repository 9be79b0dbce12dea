"""Hydra: models larger than a device train shard by shard, and many at once (arXiv 2110.08633).

Read `spilled` (one model), `units` and `shard` (what is done when), `pilot` (where to cut), `lrtf` (which model
is next) and `sharp` (many models on many devices).
"""

from fewgpu.spill.lrtf import Chain, plan
from fewgpu.spill.pilot import shards_that_fit
from fewgpu.spill.sharp import Job, sharp
from fewgpu.spill.spilled import Spilled

__all__ = ['Chain', 'Job', 'Spilled', 'plan', 'shards_that_fit', 'sharp']
