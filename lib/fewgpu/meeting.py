"""Ranks come together before they connect: who is not there in time is named, and nobody waits for ever.

torch.distributed makes connections with all ranks at once, in calls that wait for whoever comes late. So ranks first
write in the store that they are here, and look who else is:

    rank 0   here ── all here? ── all here? ── all here! ──► connect
    rank 1                  here ───────────── all here! ──► connect
    rank 2                             here ── all here! ──► connect

Whoever finds all of them there, or has waited long enough, writes down how it ended, unless somebody has before: all
read the same end, and none of them connects with one that has given up.
"""

import re
import time
from collections.abc import Sequence

import torch.distributed as dist

_LOOK = 0.02   # seconds between two looks at the store
_ALL = 'all'
_MOST = 2**12   # bytes of what a rank says


class PeerError(RuntimeError):
    """A rank that is waited for is gone, or late. `peer` is its rank (among all ranks)."""

    is_of_another_rank = True   # see fewgpu.launch: it raises that rank's own error, if it left one
    came_late = False           # it is this rank for which others have waited in vain

    def __init__(self, message: str, peer: int = -1) -> None:   # the default lets it be unpickled
        super().__init__(message)
        self.peer = peer


def come_together(store: dist.Store, me: int, members: Sequence[int], what: str, time_limit: float) -> None:
    """Return when all members have called it, to do the same `what` ('make the same DataParallel'), say.

    `me` is this rank, one of the members, which are ranks among all. Meetings of the same members are told apart by
    their numbers: the k-th call of one rank is to meet the k-th call of the others.

    Raises PeerError, on all that are here, if a member does not come within `time_limit` seconds (and on that member,
    if it comes later); ValueError, on all of them, if members have come to do different things.
    """
    if len(members) == 1:
        return
    names = f'fewgpu/{",".join(map(str, members))}'
    try:
        place = f'{names}/{store.add(f"{names}/calls of {me}", 1)}'
        store.set(f'{place}/{me}', what)
        end = _how_it_ended(store, place, me, members, time_limit)
        wanted = {rank: _text(store.get(f'{place}/{rank}')) for rank in members} if end == _ALL else {}
    except RuntimeError as error:
        raise PeerError(f'rank {me} comes to {what}, but the store of the ranks is gone, with the process that had it '
                        f'({error})') from error
    if end != _ALL:
        raise _late(end, me, what)
    if len({*wanted.values()}) > 1:
        told = ', '.join(f'rank {rank} to {theirs}' for rank, theirs in wanted.items())
        raise ValueError(f'the ranks have come to do different things: {told}: all ranks make the same, in the same '
                         f'order')


def _how_it_ended(store: dist.Store, place: str, me: int, members: Sequence[int], time_limit: float) -> str:
    """_ALL, or who gave up, after how many seconds, and for whom it had waited: '0/60/1, 2'."""
    end, everybody, deadline = f'{place}/end', [f'{place}/{rank}' for rank in members], time.monotonic() + time_limit
    while True:   # a wait of the store could lock others out of it
        if store.check([end]):
            return _text(store.get(end))
        if store.check(everybody):
            found = _ALL
        elif time.monotonic() >= deadline:
            missing = [str(rank) for rank, key in zip(members, everybody) if not store.check([key])]
            found = f'{me}/{time_limit:g}/{", ".join(missing)}' if missing else _ALL
        else:
            time.sleep(_LOOK)
            continue
        store.compare_set(end, '', found)   # the first one counts


def _text(stored: bytes) -> str:
    """Whoever reaches the store can write anything into it."""
    return stored[:_MOST].decode(errors='replace')


def _late(end: str, me: int, what: str) -> PeerError:
    """What to raise on this rank, of how it ended."""
    if not re.fullmatch(r'\d{1,9}/[\d.e+]{1,20}/\d{1,9}(, \d{1,9})*', end):
        return PeerError(f'rank {me} comes to {what}, but the store of the ranks holds {end[:40]!r}, which no rank '
                         f'writes: does another program use its port?')
    waited, seconds, missing = end.split('/')
    if str(me) in missing.split(', '):
        error = PeerError(f'rank {me} comes to {what} too late: rank {waited} has waited {seconds} s for it, and given '
                          f'up', int(waited))
        error.came_late = True
        return error
    company = '' if int(waited) == me else f', and rank {me} with it'
    return PeerError(f'after {seconds} s rank {waited} still waits for rank {missing} to {what}{company}',
                     int(missing.split(', ')[0]))
