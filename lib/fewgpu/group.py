"""Who takes part in a collective, and how tensors get from rank to rank: sends and receives only.

All communication of `fewgpu.collectives` goes through `Group.exchange`, which posts the receives
and the sends of one round together, so that nobody waits in a circle, and then waits for all of
them, for a limited time. `meet` is how the ranks of torchrun find each other, `new_group` how they get connections
of their own.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fewgpu.calls import Call, DifferentCalls
from fewgpu.limit import verify_time_limit
from fewgpu.meeting import PeerError, come_together
from fewgpu.misses import PATIENCE, Misses, Wait, lookout

_FOR_EVER = timedelta(days=7)   # of what torch waits for: we bound waits ourselves
Parts = Sequence[tuple[torch.Tensor, int]]   # tensors, each with the rank at its other end
Post = tuple[torch.Tensor, int, int]         # and with the tag under which it travels
_calls: Counter[str] = Counter()   # of this rank, by the name of the process group


def meet(time_limit: float = 60.0) -> bool:
    """Are there ranks of torch.distributed? Those of torchrun meet here, if the script has not let them before.

    Every class that works on ranks calls it, so a script for torchrun needs no init_process_group. A script that
    moves its model to a GPU before calls this first: the GPU of the rank is the current one afterwards.

    Raises PeerError if a rank of torchrun does not come within `time_limit` seconds.
    """
    if not dist.is_available():
        return False
    torchrun = {'RANK', 'MASTER_ADDR', 'TORCHELASTIC_RUN_ID'} <= {*os.environ}
    if torchrun and not dist.is_initialized():
        if os.environ['MASTER_ADDR'] in ('localhost', '127.0.0.1') and sys.platform == 'linux':
            os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')   # not every host's name can be resolved
        place, places = int(os.environ['LOCAL_RANK']), int(os.environ['LOCAL_WORLD_SIZE'])
        if torch.cuda.is_available():
            torch.cuda.set_device(place % torch.cuda.device_count())
        backend, own_gpu = backend_of(place, places)
        store, rank, ranks = _store_of_torchrun(time_limit)
        come_together(store, rank, range(ranks), 'make its first class that works on ranks, as all ranks do',
                      time_limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_FOR_EVER,
                                device_id=own_gpu)
    return dist.is_initialized()


def _store_of_torchrun(time_limit: float) -> tuple[dist.Store, int, int]:
    """It, this rank, and how many there are."""
    try:
        store, rank, ranks = next(dist.rendezvous('env://', timeout=timedelta(seconds=time_limit)))
    except dist.DistError as error:   # the process with the store waits for all others, and they for it
        raise PeerError(f'after {time_limit:g} s rank {os.environ["RANK"]} has not found the other ranks of torchrun '
                        f'({error}): all ranks make the same classes that work on ranks') from error
    store.set_timeout(_FOR_EVER)
    return dist.PrefixStore('fewgpu', store), rank, ranks


def backend_of(place: int, places: int) -> tuple[str, torch.device | None]:
    """Of one of so many ranks on this machine: gloo, and NCCL for GPU tensors if each has a GPU of its own, which
    comes with it (NCCL shares none)."""
    if dist.is_nccl_available() and torch.cuda.is_available() and torch.cuda.device_count() >= places:
        return 'cpu:gloo,cuda:nccl', torch.device('cuda', place)
    return 'gloo', None


def verify_met(time_limit: float = 60.0) -> None:
    """Raises RuntimeError without ranks, PeerError if one of torchrun is late; and as `verify_time_limit`."""
    verify_time_limit(time_limit)
    if not meet(time_limit):
        raise RuntimeError('torch.distributed is not initialised: start the ranks with fewgpu.launch or torchrun, '
                           'or call init_process_group')


def is_distributed(devices: Sequence[Any] | None = None, time_limit: float | None = None) -> bool:
    """Does this process work with others, and is it to hold one row only? Not if it has several devices.

    Raises PeerError as `meet` does (None: after its 60 s)."""
    if devices is not None and len(devices) != 1:
        return False
    return meet(60.0 if time_limit is None else time_limit) and dist.get_world_size() > 1


class Group:
    """The ranks of a process group of torch.distributed (all ranks by default).

    Raises RuntimeError without ranks. `rank` and `size` are this rank's place and the number of ranks, `bytes_sent`
    counts what this rank has sent. `time_limit` bounds every wait for a peer (seconds), the one for ranks of torchrun
    that are still to meet included: PeerError.

    Ranks that call different collectives, or with other shapes, are told so after about a second: DifferentCalls (with
    gloo; messages of NCCL have no tags). See `fewgpu.calls`.

    Collectives of several threads must not share a group: messages have an order, not names.
    """

    def __init__(self, process_group: 'dist.ProcessGroup | None' = None,
                 time_limit: float = 60.0) -> None:
        verify_met(time_limit)
        self.process_group = process_group or dist.group.WORLD
        self.rank = dist.get_rank(self.process_group)
        self.size = dist.get_world_size(self.process_group)
        self.time_limit = time_limit
        self.bytes_sent = 0
        self._host_only = dist.get_backend(self.process_group) == 'gloo'

    def exchange(self, what: str, sends: Parts = (), receives: Parts = ()) -> None:
        """Send tensors to peers and fill tensors with what peers send, all at the same time.

        Both ends know the shape and dtype; a tensor without elements is not sent. `what` names the collective in the
        PeerError that is raised if a peer is gone, or late. A `Call` is compared with the peers' calls.
        """
        by_gloo = self._host_only or all(tensor.device.type == 'cpu' for tensor, _ in (*sends, *receives))
        call = what if isinstance(what, Call) and by_gloo else None
        if call and not call.number:
            _calls[self.process_group.group_name] += 1
            call.begin(_calls[self.process_group.group_name])
        sends = [(tensor, peer) for tensor, peer in sends if tensor.numel()]
        targets = [(tensor.detach(), peer) for tensor, peer in receives if tensor.numel()]
        landings = [self._landing(tensor) for tensor, _ in targets]
        tag = call.tag if call else lambda tensor: 0
        with self._looked_after(call, sends, targets):
            self._complete(what, [(landing, peer, tag(tensor)) for landing, (tensor, peer) in zip(landings, targets)],
                           [(self._as_sent(tensor), peer, tag(tensor)) for tensor, peer in sends])
        self.bytes_sent += sum(tensor.nbytes for tensor, _ in sends)
        for landing, (tensor, _) in zip(landings, targets):
            if landing is not tensor:
                tensor.copy_(landing)

    def _looked_after(self, call: Call | None, sends: Parts, receives: Parts) -> AbstractContextManager:
        """A wait that goes on for long is compared with those of others."""
        if call is None or not (sends or receives):
            return nullcontext()
        among_all = [[(tensor, self._among_all(peer)) for tensor, peer in parts] for parts in (sends, receives)]
        due = time.monotonic() + min(PATIENCE, self.time_limit / 4)
        return lookout.looks_after(Wait(due, call, *among_all, self._misses(), self._hang_up))

    def _complete(self, what: str, receives: Sequence[Post], sends: Sequence[Post]) -> None:
        start, peers = time.monotonic(), [peer for _, peer, _ in (*receives, *sends)]
        waiting_for = iter(peers)
        peer = next(waiting_for, self.rank)
        try:
            for work in self._post(receives, sends):
                work.wait(timedelta(seconds=max(0.001, start + self.time_limit - time.monotonic())))
                peer = next(waiting_for, peer)
        except RuntimeError as error:
            late = time.monotonic() - start >= self.time_limit
            raise self._explained(what, self._among_all(peer), late) from error

    def _post(self, receives: Sequence[Post], sends: Sequence[Post]) -> 'list[dist.Work]':
        group = self.process_group
        if self._host_only:
            return [*(dist.irecv(tensor, group=group, group_src=peer, tag=tag) for tensor, peer, tag in receives),
                    *(dist.isend(tensor, group=group, group_dst=peer, tag=tag) for tensor, peer, tag in sends)]
        # NCCL must be told what belongs together, or two ranks would both receive first.
        posts = [dist.P2POp(do, tensor, group=group, group_peer=peer, tag=tag)
                 for do, parts in ((dist.irecv, receives), (dist.isend, sends))
                 for tensor, peer, tag in parts]
        return dist.batch_isend_irecv(posts) if posts else []

    def _explained(self, what: str, peer: int, late: bool) -> PeerError | DifferentCalls:
        """The error to raise. The ranks that wait for this one learn at once that there is nothing
        to wait for, and all name the rank that is really missing."""
        missing = self._misses().follow(peer, late)
        self._hang_up()
        if isinstance(missing, DifferentCalls):
            return missing
        reason = (f'did not take part within {self.time_limit:g} s' if late else
                  'closed the connection: its process died or ended')
        if missing != peer:
            reason = f'waited in vain, in the end for rank {missing}, which died, ended or is late'
        me = self._among_all(self.rank)
        return PeerError(f'rank {me}, {what}: rank {peer} {reason}', missing)

    def _misses(self) -> Misses:
        return Misses(self.process_group.group_name, self._among_all(self.rank))

    def _hang_up(self) -> None:
        """gloo closes all connections of a group when a wait has timed out."""
        for peer in range(self.size):
            if peer != self.rank:
                with suppress(RuntimeError, ValueError):
                    dist.irecv(torch.empty(1), group=self.process_group, group_src=peer).wait(
                        timedelta(milliseconds=1))

    def _among_all(self, rank: int) -> int:
        return dist.get_global_rank(self.process_group, rank)

    def _as_sent(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return tensor.cpu() if self._host_only else tensor

    def _landing(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself if it can receive, else one that is copied to it afterwards."""
        if self._host_only and tensor.device.type != 'cpu':
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.is_conj() or tensor.is_neg():
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return tensor if tensor.is_contiguous() else torch.empty_like(
            tensor, memory_format=torch.contiguous_format)


def new_group(ranks_of: 'dist.ProcessGroup | None', time_limit: float, what: str) -> Group:
    """The same ranks (None: all) with connections of their own; all of them call it, for the same `what` (of which
    class it is, say).

    Raises PeerError if one of them does not come within `time_limit` seconds, ValueError if another one makes
    another class.
    """
    whole = Group(ranks_of, time_limit)   # only asked who its ranks are
    members = dist.get_process_group_ranks(whole.process_group)
    come_to_make(members, what, time_limit)
    return Group(dist.new_group(members, use_local_synchronization=ranks_of is not None), time_limit)


def come_to_make(members: Sequence[int], what: str, time_limit: float) -> None:
    """Return when all members are here to make the same class; raises as `new_group`."""
    come_together(dist.distributed_c10d._get_default_store(), dist.get_rank(), members, f'make the same {what}',
                  time_limit)
