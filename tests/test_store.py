"""A store gives back what was written, or says that it cannot; a failed write leaves the old version."""

import errno
import os
import subprocess
import sys
import time
from typing import Any, BinaryIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.store import DiskStore, HostStore, StoreError
from fewgpu.tensorfile import DTYPES
from tests.networks import seeded

KINDS = (HostStore, DiskStore)


@st.composite
def tensors(draw: st.DrawFn) -> list[torch.Tensor]:
    """Any dtypes, shapes and strides."""
    found = []
    for _ in range(draw(st.integers(0, 4))):
        dtype = DTYPES[draw(st.sampled_from([*DTYPES]))]
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        with seeded(draw(st.integers(0, 99))):
            value = (100 * torch.randn(shape)).to(dtype)
        found.append(value.t() if value.dim() == 2 and draw(st.booleans()) else value)
    return found


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in zip(ones, others))


@given(tensors(), tensors(), st.sampled_from(KINDS))
def test_reads_what_was_written_last(first, second, kind):
    with kind() as store:
        store.write('a', first, {'n': [1, 'x']})
        for tensor in store.read('a'):
            tensor.fill_(1)   # a copy
        assert same(store.read('a'), first) and store.about('a') == {'n': [1, 'x']}
        store.write('a', second)
        store.write('b', first)
        assert same(store.read('a'), second) and store.about('a') is None
        assert store.names() == ['a', 'b'] and 'a' in store and 'c' not in store
        store.remove('a')
        assert store.names() == ['b'] and 'a' not in store


@given(st.integers(0, 700_000), st.data(), st.sampled_from(KINDS))
def test_a_part_is_that_part(count, data, kind):   # a MiB is 262,144 numbers
    start, stop = (data.draw(st.integers(0, count)) for _ in range(2))
    whole = torch.arange(count, dtype=torch.float32)
    with kind() as store:
        store.write('flat', [whole, whole.view(-1, 1)])
        for part in store.read('flat', slice(start, stop)):
            assert torch.equal(part, whole[start:stop])


@given(tensors().filter(lambda some: sum(t.nbytes for t in some)), st.data())
def test_a_flipped_bit_anywhere_is_noticed(some, data):
    with DiskStore() as store:
        store.write('a', some)
        path = store.folder / 'a.tensors'
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(StoreError, match='put back a copy'):
            store.read('a')


@given(tensors().filter(lambda some: sum(t.nbytes for t in some)), st.data())
def test_a_short_file_is_noticed(some, data):
    with DiskStore() as store:
        store.write('a', some)
        path = store.folder / 'a.tensors'
        path.write_bytes(path.read_bytes()[:data.draw(st.integers(0, path.stat().st_size - 1))])
        with pytest.raises(StoreError, match='put back a copy'):
            store.read('a')


class Full:
    """A file on a disk with so much room left."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> None:
        fits = memoryview(data)[:self.room]
        self.file.write(fits)
        self.room -= len(fits)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Filling(DiskStore):
    """A disk that is full after `room` bytes."""

    room = 2**40

    def _dump(self, file: BinaryIO, *what: Any) -> None:
        full = Full(file, self.room)
        try:
            super()._dump(full, *what)
        finally:
            self.room = full.room


@given(tensors(), st.integers(0, 150))
def test_a_full_disk_leaves_the_old_version_and_no_trace(old, room):
    new = [torch.arange(50.0)]   # 200 bytes
    with Filling() as store:
        store.write('a', old)
        there = sorted(os.listdir(store.folder))
        store.room = room
        with pytest.raises(StoreError, match='No space left.*what was there before still is: make room'):
            store.write('a', new)
        assert same(store.read('a'), old) and sorted(os.listdir(store.folder)) == there
        store.room = 2**40
        store.write('a', new)
        assert same(store.read('a'), new)


@pytest.mark.skipif(sys.platform == 'win32', reason='no limit on the size of files')
def test_a_limit_of_the_system_leaves_the_old_version():
    program = '''
import resource, sys, torch
from fewgpu.store import DiskStore, StoreError
store = DiskStore(sys.argv[1])
store.write('a', [torch.ones(10)])
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    store.write('a', [torch.ones(10_000)])
except StoreError as error:
    assert 'make room' in str(error), error
    assert store.read('a')[0].tolist() == [1.0] * 10
    print('kept')
'''
    with DiskStore() as outer:
        folder = outer.folder / 'inner'
        done = subprocess.run([sys.executable, '-P', '-c', program, folder], capture_output=True, text=True,
                              env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}, timeout=120)
        assert done.stdout == 'kept\n', done.stderr


def test_one_store_a_folder():
    with DiskStore() as store:
        with pytest.raises(StoreError, match='is in use by another store'):
            DiskStore(store.folder)
        store.write('a', [torch.ones(1)])


def test_a_folder_outlives_its_store_and_a_temporary_one_does_not(tmp_path):
    with DiskStore(tmp_path / 'new' / 'folder') as store:
        store.write('a', [torch.ones(2)])
        (store.folder / 'b.new').write_bytes(b'half')   # as a killed process leaves it
    with DiskStore(tmp_path / 'new' / 'folder') as store:
        assert store.read('a')[0].tolist() == [1, 1] and not [*store.folder.glob('*.new')]
    with DiskStore() as temporary:
        temporary.write('a', [torch.ones(2)])
    assert not temporary.folder.exists()
    forgotten = DiskStore()
    folder = forgotten.folder
    del forgotten
    assert not folder.exists()


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(StoreError, match='choose a folder of your own'):
        DiskStore(tmp_path / 'file')


@pytest.mark.parametrize('kind', KINDS)
def test_a_name_that_is_not_there_or_none(kind):
    with kind() as store:
        with pytest.raises(StoreError, match='there is no a in .* nothing'):
            store.read('a')
        store.write('b', [])
        with pytest.raises(StoreError, match='there is no a in .*, but b'):
            store.about('a')
        for name in ('', '../a', 'a/b', '.a', 'a\n'):
            with pytest.raises(ValueError, match='not a name for a file everywhere'):
                store.write(name, [])
        with pytest.raises(TypeError, match='convert it first'):
            store.write('a', [torch.eye(2).to_sparse()])


@pytest.mark.parametrize('kind', KINDS)
def test_takes_the_time_of_its_bandwidth(kind):
    with kind(bandwidth=1e6) as store:
        start = time.perf_counter()
        store.write('a', [torch.ones(25_000)])
        store.read('a')
        assert time.perf_counter() - start >= 0.2   # it cannot be faster
        assert store.bytes_read == store.bytes_written == 100_000
