import numpy as np
import torch


def clock_cycles(stages, micro_batches):
    cycle_of = torch.arange(stages)[:, None] + torch.arange(micro_batches)
    return tuple([tuple(pair) for pair in (cycle_of == cycle).nonzero().tolist()]
                 for cycle in range(stages + micro_batches - 1))


def gpipe(stages, micro_batches):
    numbers = np.arange(micro_batches).astype(str)
    row = np.concatenate([np.char.add('F', numbers), np.char.add('B', numbers[::-1])])
    return np.tile(row, (stages, 1))


def bubble(stages, micro_batches):
    return torch.tensor(1 - micro_batches / (stages + micro_batches - 1), dtype=torch.float64)
