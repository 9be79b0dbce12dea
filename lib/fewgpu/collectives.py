"""Collectives built on sends and receives: what all-reduce and its relatives do, to read.

N ranks, a tensor of S bytes, messages that take alpha + bytes / beta seconds (alpha: latency, beta:
bandwidth). Every function is called by all ranks of the group, with tensors of the same shape and
dtype unless it says otherwise. `op` is 'sum', 'mean' (of floating-point numbers), 'max' or 'min'.

What comes out equals torch.distributed's: bit for bit for integers, 'max', 'min', everything that
is only moved, and up to two ranks; else sums are rounded in another order. After an all-reduce all
ranks have the same bits.

Costs are the textbook ones (ring: 2(N-1)/N S bytes a rank, 2(N-1) rounds; stated from memory, they
agree with ZeRO's 2 Psi, arXiv 1910.02054, and the (d-1)/d of Megatron-LM's costs).
"""

from collections.abc import Callable, Sequence

import torch

from fewgpu.calls import Call, DifferentCalls
from fewgpu.group import Group, PeerError

__all__ = ['DifferentCalls', 'Group', 'PeerError', 'all_gather', 'all_reduce', 'all_to_all', 'broadcast',
           'gather', 'reduce', 'reduce_scatter', 'scatter']

_COMBINE = {'sum': torch.add, 'mean': torch.add, 'max': torch.maximum, 'min': torch.minimum}


@torch.no_grad()
def all_reduce(tensor: torch.Tensor, group: Group, op: str = 'sum') -> None:
    """Every rank gets the sum (mean, ...) of all ranks' tensors, in place, by a ring.

        rank 0   a0 b0 c0      S  b  .       S  S  S     S: the sum of that piece over all ranks
        rank 1   a1 b1 c1  ->  .  S  .   ->  S  S  S
        rank 2   a2 b2 c2      .  .  S       S  S  S
                 reduce-scatter         all-gather

    The tensor is cut into N pieces, whose lengths differ by at most one element. A rank sends
    2(N-1)/N S bytes if N divides the elements, otherwise 2S less its own piece and its right
    neighbour's. Time 2(N-1) alpha + 2(N-1)/N S / beta.
    """
    flat = tensor.contiguous().view(-1)
    pieces, call = flat.tensor_split(group.size), Call('all_reduce', [tensor], op)
    _reduce_scatter_in_place(call, pieces, group, op)
    _all_gather(call, pieces, group)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


@torch.no_grad()
def reduce_scatter(pieces: Sequence[torch.Tensor], group: Group, op: str = 'sum') -> torch.Tensor:
    """Rank r gets the sum (mean, ...) of all ranks' `pieces[r]`, as a new tensor, by a ring.

        round 1   rank r sends its piece r-1 to the right (to r+1) and receives piece r-2,
                  to which it adds its own piece r-2
        round 2   it sends this partial sum on and receives that of piece r-3, adds its own, ...
        round N-1 what it receives is piece r, summed over all ranks but itself: it adds its own

    Piece r is summed in the order r+1, r+2, ..., r. Pieces may differ in size; pieces[r] has the
    same on all ranks. A rank sends all its pieces but one: (N-1)/N S bytes if they are equal. Time
    (N-1) alpha + (N-1)/N S / beta.
    """
    pieces = [piece.clone() for piece in pieces]
    _reduce_scatter_in_place(Call('reduce_scatter', pieces, op), pieces, group, op)
    return pieces[group.rank]


def _reduce_scatter_in_place(what: Call, pieces: Sequence[torch.Tensor], group: Group,
                             op: str) -> None:
    """Leaves partial sums in the pieces of the other ranks."""
    combine = _combination(op, pieces[0])
    rank, size = group.rank, group.size
    for step in range(1, size):
        sent, own = pieces[(rank - step) % size], pieces[(rank - step - 1) % size]
        received = torch.empty_like(own)
        group.exchange(what, [(sent, (rank + 1) % size)], [(received, (rank - 1) % size)])
        combine(own, received, out=own)
    if op == 'mean':
        pieces[rank].div_(size)


@torch.no_grad()
def all_gather(pieces: Sequence[torch.Tensor], group: Group) -> None:
    """Every rank gets every rank's piece: rank r comes with `pieces[r]`, the others are filled.

        round 1   rank r sends its own piece r to the right (to r+1) and receives piece r-1
        round 2   it sends piece r-1 on and receives piece r-2, ...

    Pieces may differ in size; pieces[r] has the same on all ranks. A rank sends all pieces but its
    right neighbour's: (N-1)/N S bytes if they are equal. Time (N-1) alpha + (N-1)/N S / beta.
    """
    _all_gather(Call('all_gather', pieces), pieces, group)


def _all_gather(what: Call, pieces: Sequence[torch.Tensor], group: Group) -> None:
    rank, size = group.rank, group.size
    for step in range(size - 1):
        sent, received = pieces[(rank - step) % size], pieces[(rank - step - 1) % size]
        group.exchange(what, [(sent, (rank + 1) % size)], [(received, (rank - 1) % size)])


@torch.no_grad()
def broadcast(tensor: torch.Tensor, group: Group, root: int = 0) -> None:
    """Every rank gets the root's tensor, in place, by a binomial tree.

        round 1   0 -> 1                            ranks counted from the root
        round 2   0 -> 2   1 -> 3
        round 3   0 -> 4   1 -> 5   2 -> 6   3 -> 7

    Who has it sends it: their number doubles every round. All ranks together send (N-1) S bytes,
    the root ceil(log2 N) S. Time ceil(log2 N) (alpha + S / beta).
    """
    call = Call('broadcast', [tensor], f'root {root}')
    for near, far in _tree(group, root):
        if near == group.rank:
            group.exchange(call, sends=[(tensor, far)])
        elif far == group.rank:
            group.exchange(call, receives=[(tensor, near)])


@torch.no_grad()
def reduce(tensor: torch.Tensor, group: Group, root: int = 0, op: str = 'sum') -> None:
    """The root gets the sum (mean, ...) of all ranks' tensors, in place; the others keep theirs.

        round 1   0 <- 4   1 <- 5   2 <- 6   3 <- 7      ranks counted from the root
        round 2   0 <- 2   1 <- 3
        round 3   0 <- 1

    The tree of `broadcast`, from the leaves to the root. Every rank but the root sends S bytes,
    once. Time ceil(log2 N) (alpha + S / beta).
    """
    combine, partial, call = _combination(op, tensor), tensor, Call('reduce', [tensor], op, f'root {root}')
    for near, far in reversed(_tree(group, root)):
        if far == group.rank:
            group.exchange(call, sends=[(partial, near)])
        elif near == group.rank:
            received = torch.empty_like(tensor)
            group.exchange(call, receives=[(received, far)])
            partial = combine(partial, received)
    if group.rank == root:
        tensor.copy_(partial / group.size if op == 'mean' else partial)


def _verify_root(root: int, group: Group) -> None:
    if not 0 <= root < group.size:
        raise ValueError(f'the root is one of the ranks 0 to {group.size - 1} of the group, not {root}')


def _tree(group: Group, root: int) -> list[tuple[int, int]]:
    """The edges (nearer to the root, farther) of a binomial tree, round by round from the root."""
    _verify_root(root, group)
    edges, reached = [], 1
    while reached < group.size:
        edges += [(near, near + reached) for near in range(min(reached, group.size - reached))]
        reached *= 2
    return [((near + root) % group.size, (far + root) % group.size) for near, far in edges]


@torch.no_grad()
def scatter(tensor: torch.Tensor, pieces: Sequence[torch.Tensor] | None, group: Group,
            root: int = 0) -> None:
    """Rank r gets the root's `pieces[r]` in `tensor`; only the root has pieces.

        root   p0 p1 p2   ->   rank 0: p0   rank 1: p1   rank 2: p2

    Pieces may differ in size. The root sends all but its own, (N-1)/N S bytes of S in all. Time
    (N-1) alpha + (N-1)/N S / beta.
    """
    _verify_root(root, group)
    call = Call('scatter', None, f'root {root}')
    if group.rank != root:
        return group.exchange(call, receives=[(tensor, root)])
    group.exchange(call, sends=[(pieces[peer], peer) for peer in _others(group)])
    tensor.copy_(pieces[root])


@torch.no_grad()
def gather(tensor: torch.Tensor, pieces: Sequence[torch.Tensor] | None, group: Group,
           root: int = 0) -> None:
    """The root gets rank r's `tensor` in its `pieces[r]`; only the root has pieces.

        rank 0: p0   rank 1: p1   rank 2: p2   ->   root   p0 p1 p2

    Pieces may differ in size. Every rank but the root sends its tensor. Time (N-1) alpha +
    (N-1)/N S / beta, since all S bytes but its own arrive at the root.
    """
    _verify_root(root, group)
    call = Call('gather', None, f'root {root}')
    if group.rank != root:
        return group.exchange(call, sends=[(tensor, root)])
    group.exchange(call, receives=[(pieces[peer], peer) for peer in _others(group)])
    pieces[root].copy_(tensor)


@torch.no_grad()
def all_to_all(received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor],
               group: Group) -> None:
    """Rank r's `sent[q]` becomes rank q's `received[r]`: a transposition.

        rank 0   a0 a1 a2        a0 b0 c0        round k: rank r sends to r+k
        rank 1   b0 b1 b2   ->   a1 b1 c1                 and receives from r-k
        rank 2   c0 c1 c2        a2 b2 c2

    Pieces may differ in size, as long as both ends agree. A rank sends all pieces but its own,
    (N-1)/N S bytes if they are equal. Time (N-1) alpha + (N-1)/N S / beta.
    """
    rank, size, call = group.rank, group.size, Call('all_to_all')
    received[rank].copy_(sent[rank])
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        group.exchange(call, [(sent[right], right)], [(received[left], left)])


def _others(group: Group) -> list[int]:
    return [peer for peer in range(group.size) if peer != group.rank]


def _combination(op: str, tensor: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The function that combines two tensors. Raises ValueError if there is none for this dtype."""
    if op not in _COMBINE:
        raise ValueError(f"op is {op!r}: choose one of {', '.join(map(repr, _COMBINE))}")
    if op == 'mean' and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"the mean of {tensor.dtype} numbers is no {tensor.dtype}: convert them to "
                         f"floating point first, or take 'sum'")
    if op == 'sum' and tensor.dtype == torch.bool:
        raise ValueError("a sum of torch.bool is no torch.bool: count with torch.int64, or take "
                         "'max' (any) or 'min' (all)")
    return _COMBINE[op]
