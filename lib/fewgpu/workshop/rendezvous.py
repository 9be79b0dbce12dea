"""How the torchruns of a job meet: they have a store, and Slurm has numbered the nodes, so all is agreed on."""

from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


class SlurmRendezvous(RendezvousHandler):
    """Node `node` of `nodes`, with a TCPStore of the first one.

    torch's own ways of meeting would not do: with c10d the nodes' order is that of their addresses, and the ranks get
    another store, which listens on all networks; with static the port has to be known beforehand.
    """

    def __init__(self, store: dist.TCPStore, node: int, nodes: int) -> None:
        self._store, self._node, self._nodes = store, node, nodes

    def get_backend(self) -> str:
        return 'slurm'

    def get_run_id(self) -> str:
        return 'fewgpu'   # a store is of one run

    @property
    def use_agent_store(self) -> bool:
        """The ranks get this store, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        where: Any = RendezvousStoreInfo(self._store.host, self._store.port)
        return RendezvousInfo(dist.PrefixStore('torchrun', self._store), self._node, self._nodes, where)

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else may come anyway: there is one meeting."""

    def shutdown(self) -> bool:
        return True
