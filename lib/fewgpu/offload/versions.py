"""State in stores that changes in whole steps: after a crash at any moment it is as it was after one.

A step writes what it changes under new names, beside the old. Then one small record, the manifest,
is replaced: from that moment the new names count. The old ones go afterwards.

    3.weights@6   3.weights@7   manifest: {3.weights: 6, ...}  ->  {3.weights: 7, ...}

On ranks each has a store, with a manifest. All wait until all have written, replace their manifests,
wait again, and only then remove what is old. So if they are killed in between, those that are one
step ahead still have what they had before, and go back to it when they are opened.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fewgpu.offload.store import Store, StoreError

_MANIFEST = 'manifest'
_OWNER = 'owner'   # in the store for states: to which manifest they belong
_NOTHING = {'version': -1, 'records': {}, 'about': None, 'owner': ''}


class Versions:
    """Records of two stores (which may be one): those that are called '*.states', and the others.

    `least` says which of the numbers of all ranks is the least, when all have called it; for one
    process it is the number itself. Raises StoreError if the ranks' stores do not belong together,
    TypeError for what is no store.
    """

    def __init__(self, store: Store, states: Store, least: Callable[[int], int]) -> None:
        for each in (store, states):
            if not isinstance(each, Store):
                raise TypeError(f"a store is a DiskStore('folder') or a HostStore(), not {each!r}")
        self._store, self._states, self._least = store, states, least
        self._written: list[str] = []
        self._take(_NOTHING)
        now, before = store.about(_MANIFEST) if _MANIFEST in store else (_NOTHING, _NOTHING)
        least = self._least(now['version'])
        if least == before['version']:   # others were killed before they got as far
            now = before
        if least != now['version']:
            raise StoreError(f'this rank has version {now["version"]} in its store and another has {least}: '
                             f'give every rank the store that it had')
        self._take(now)
        self._verify_owner(now['owner'])
        self._remove_all_but(self._names(self._records))

    def _verify_owner(self, owner: str) -> None:
        """Nobody's states are removed because somebody took the wrong folder for them."""
        if self._states is self._store:
            return
        found = self._states.about(_OWNER) if _OWNER in self._states else ''
        begun = not any('@' in name and not name.endswith('@0') for name in self._states.names())
        if found != owner and not (begun and not self.exists):
            raise StoreError('the store for states holds those of another model: give this one the store '
                             'that it had, or an empty one to begin with')

    def _take(self, said: dict) -> None:
        self._version, self._records, self._owner = said['version'], said['records'], said['owner']
        self.about = said['about']   #: what the `commit` said

    @property
    def exists(self) -> bool:
        """Is there anything, from an earlier run or by the first `commit`?"""
        return self._version >= 0

    def read(self, record: str) -> list[torch.Tensor]:
        """As it was at the latest `commit`."""
        return self._of(record).read(self._name(record, self._records[record]))

    def described(self, record: str) -> Any:
        """What was written beside its tensors."""
        return self._of(record).about(self._name(record, self._records[record]))

    def write(self, record: str, tensors: list[torch.Tensor], about: Any = None) -> None:
        """To count from the next `commit`."""
        self._written.append(record)
        self._of(record).write(self._name(record, self._version + 1), tensors, about)

    def commit(self, about: Any) -> None:
        """All that has been written since the last one counts from now on, at once."""
        if not self.exists:
            self._owner = secrets.token_hex(8)
            if self._states is not self._store:
                self._states.write(_OWNER, [], self._owner)
        version, owner = self._version + 1, self._owner
        before = {'version': self._version, 'records': self._records, 'about': self.about, 'owner': owner}
        now = {'version': version, 'about': about, 'owner': owner,
               'records': {**self._records, **{record: version for record in self._written}}}
        self._least(version)   # all have written
        self._store.write(_MANIFEST, [], [now, before])
        old = self._names(self._records) - self._names(now['records'])
        self._take(now)
        self._written = []
        self._least(version)   # all have replaced their manifests
        for store, name in old:
            with contextlib.suppress(OSError):   # the step counts; the next who opens the stores removes it
                store.remove(name)

    def roll_back(self) -> None:
        """Forget what has been written since the last `commit`."""
        for record in self._written:
            self._of(record).remove(self._name(record, self._version + 1))
        self._written = []

    def _of(self, record: str) -> Store:
        return self._states if record.endswith('.states') else self._store

    @staticmethod
    def _name(record: str, version: int) -> str:
        return f'{record}@{version}'

    def _names(self, records: dict[str, int]) -> set[tuple[Store, str]]:
        return {(self._of(record), self._name(record, version)) for record, version in records.items()}

    def _remove_all_but(self, kept: Iterable[tuple[Store, str]]) -> None:
        """What a killed process had not made count, or not removed."""
        for store in {self._store, self._states}:
            for name in store.names():
                if (store, name) not in kept and '@' in name:
                    store.remove(name)
