"""What to run where: planners that search with a model of costs, before anything runs.

    from fewgpu.planner import Machines, partition, vgg16_chain

    plan = partition(vgg16_chain(), Machines(16, bandwidth=1e9))
    plan.config, plan.slowest_seconds       # '15-1', 0.044159

`partition` is PipeDream's: layers into stages, and replicas of each. `settings` is PipeDream-2BW's: width,
depth, micro-batch and recompute. `planner.profiled` measures the chain of a model. `planner.search.fastest_first`
sets all ways to train beside each other, for `./workshop.py plan`. None of these but `profiled` and `own`
imports torch.
"""

from fewgpu.planner.chain import Chain, Layer, vgg16_chain
from fewgpu.planner.machines import Machines
from fewgpu.planner.partitioner import Partition, Stage, data_parallel, partition
from fewgpu.planner.two_bw import Block, Setting, settings

__all__ = ['Block', 'Chain', 'Layer', 'Machines', 'Partition', 'Setting', 'Stage', 'data_parallel',
           'partition', 'settings', 'vgg16_chain']
