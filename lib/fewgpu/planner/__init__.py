"""What to run where: planners that search with a model of costs, before anything runs.

    from fewgpu.planner import Cluster, partition, vgg16_chain

    plan = partition(vgg16_chain(), Cluster(16, bandwidth=1e9))
    plan.config, plan.slowest_seconds       # '15-1', 0.044159

`partition` is PipeDream's: layers into stages, and replicas of each. `settings` is PipeDream-2BW's: width,
depth, micro-batch and recompute. `planner.profiled` measures the chain of a model. None of these but
`profiled` imports torch.
"""

from fewgpu.planner.chain import Chain, Layer, vgg16_chain
from fewgpu.planner.cluster import Cluster
from fewgpu.planner.partitioner import Partition, Stage, data_parallel, partition
from fewgpu.planner.two_bw import Block, Setting, settings

__all__ = ['Block', 'Chain', 'Cluster', 'Layer', 'Partition', 'Setting', 'Stage', 'data_parallel',
           'partition', 'settings', 'vgg16_chain']
