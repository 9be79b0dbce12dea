"""How much memory a Transformer needs, and how fast it must be reached: the formulas of ZeRO-Infinity.

From arXiv 2104.07857, sections 3 and 4, by way of a summary (it says so below where we remember
something else, or where the summary does). Sizes are bytes, bandwidths bytes a second. `layers` is
nl, `hidden` hd, `heads`, `batch` bsz (sequences), `seq` their length, `every` ci: layers between two
activation checkpoints.

    arithmetic intensity (AIT)    operations of a step for every byte that is moved
    efficiency                    ait bw / (ait bw + peak): compute over compute and transfer, without
                                  overlap; peak is what the device computes, operations a second
"""

from typing import NamedTuple

V100_PEAK, SEQ = 70e12, 1024   #: operations a second and sequence length in the plots of the paper
GB, TB = 1e9, 1e12


class Model(NamedTuple):
    """A Transformer."""

    layers: int
    hidden: int
    heads: int

    @property
    def parameters(self) -> int:
        """12 nl hd^2, the large matrices alone."""
        return 12 * self.layers * self.hidden**2


#: Figure 2a, by parameters in units of 10^12 (layers, hidden, heads: from memory). 1K is 1024.
FIGURE_2A = {0.1: Model(80, 10 * 1024, 128), 0.5: Model(100, 20 * 1024, 160), 1.0: Model(128, 25 * 1024, 256),
             10.0: Model(195, 64 * 1024, 512), 100.0: Model(315, 160 * 1024, 1024)}


def model_states(model: Model) -> int:
    """20 bytes a parameter: weights and gradients in 16 bits, and 16 for Adam in 32 (from memory: the
    summary says 16 in all, but only 20 gives the figures of the paper)."""
    return 20 * model.parameters


def activation_checkpoints(model: Model, batch: int, seq: int = SEQ, every: int = 1) -> float:
    """2 bsz seq hd nl / ci."""
    return 2 * batch * seq * model.hidden * model.layers / every


def model_working_memory(model: Model, tiles: int = 1) -> float:
    """4 hd 4hd: the largest operator (hd to 4 hd), its weights and gradients in 16 bits (from memory: the
    summary says in 32 bits). Tiles divide it."""
    return 4 * model.hidden * 4 * model.hidden / tiles


def activation_working_memory(model: Model, batch: int, seq: int = SEQ, every: int = 1) -> int:
    """bsz seq ci (16 hd + 2 heads seq): what is recomputed between two checkpoints."""
    return batch * seq * every * (16 * model.hidden + 2 * model.heads * seq)


def operations(model: Model, batch: int, seq: int = SEQ) -> int:
    """Of a step: 2 4 12 bsz seq nl hd^2: forward, backward (twice) and recompute."""
    return 2 * 4 * batch * seq * model.parameters


def ait_of_parameters(batch: int, seq: int = SEQ) -> float:
    """Operations a byte of parameters and gradients: seq bsz."""
    return seq * batch


def ait_of_optimizer_states(batch: int, seq: int = SEQ) -> float:
    """Operations a byte of optimizer states: seq bsz / 4."""
    return seq * batch / 4


def ait_of_activations(hidden: int, every: int = 1) -> float:
    """Operations a byte of activation checkpoints: 24 hd ci."""
    return 24 * hidden * every


def efficiency(ait: float, bandwidth: float, peak: float = V100_PEAK) -> float:
    """Between 0 and 1."""
    return ait * bandwidth / (ait * bandwidth + peak)


def bandwidth_for(target: float, ait: float, peak: float = V100_PEAK) -> float:
    """The bandwidth with which the efficiency is `target`, between 0 and 1 (excluded)."""
    if not 0.0 < target < 1.0:
        raise ValueError(f'an efficiency lies between 0 and 1, and is neither, not {target}')
    return target * peak / ((1 - target) * ait)


class Row(NamedTuple):
    """Figure 2b: what some GPUs have together (TB), and what each of them reaches (GB/s)."""

    nodes: int
    gpus: int
    gpu_memory: float
    cpu_memory: float
    nvme: float
    gpu_to_gpu: tuple[float, float] | None   #: from, to; None: there is no other
    cpu: float
    nvme_speed: float


#: A node of a DGX-2 as in the lecture's table: 16 GPUs of 32 GB, 1.5 TB beside them and 28 TB of NVMe.
GPUS_A_NODE, GPU_TB, CPU_TB, NVME_TB = 16, 0.032, 1.5, 28.0
NODE_CPU, NODE_NVME = 16 * 4.1, 16 * 1.6   #: GB/s that the links and the disks of a full node give together
ONE_GPU = 12.0                             #: GB/s of a GPU's own link to the host, if nobody shares the way
WITHIN, BETWEEN = (150.0, 200.0), (60.0, 100.0)   #: GB/s from GPU to GPU, in a node and between nodes


def figure_2b(gpus: int) -> Row:
    """The row of so many GPUs, from the figures of one device (GPUs of a node share its links to the host).

    Raises ValueError for GPUs that do not fill their nodes, if there is more than one node.
    """
    if gpus < 1 or (gpus > GPUS_A_NODE and gpus % GPUS_A_NODE):
        raise ValueError(f'{gpus} GPUs are neither within one node of {GPUS_A_NODE} nor do they fill several')
    nodes = -(-gpus // GPUS_A_NODE)
    sharing = min(gpus, GPUS_A_NODE)
    return Row(nodes, gpus, gpus * GPU_TB, nodes * CPU_TB, nodes * NVME_TB,
               None if gpus == 1 else WITHIN if nodes == 1 else BETWEEN,
               min(ONE_GPU, NODE_CPU / sharing), min(ONE_GPU, NODE_NVME / sharing))
