"""MNIST: what is loaded is what the files hold; whatever is wrong with them is said in one sentence."""

import gzip
import random
import shutil
import socket
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fewgpu import data
from fewgpu.data import load, subset

IMAGES, LABELS = 't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte'
COUNTS = {'train': 60_000, 'test': 10_000}  # yann.lecun.com/exdb/mnist


def idx(values: torch.Tensor) -> bytes:
    """A tensor of bytes as an IDX file."""
    return struct.pack(f'>BBBB{values.ndim}I', 0, 0, 8, values.ndim, *values.shape) + bytes(values.flatten().tolist())


def digits(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random pixels and labels, as MNIST has them."""
    return torch.randint(256, (rows, 28, 28), dtype=torch.uint8), torch.randint(10, (rows,), dtype=torch.uint8)


def write(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    """Write the files, gzipped if asked, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / (f'{name}.gz' if packed else name)
        path.write_bytes(gzip.compress(content, 1) if packed else content)
    return folder


@pytest.fixture(scope='module')
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the whole module: each example of a property overwrites the files of the one before."""
    return tmp_path_factory.mktemp('mnist')


@pytest.fixture
def bundled_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled test split, in a folder that may be damaged."""
    for name in (IMAGES, LABELS):
        shutil.copy(data._BUNDLED / f'{name}.gz', tmp_path)
    monkeypatch.setattr(data, '_BUNDLED', tmp_path)
    return tmp_path


@pytest.mark.parametrize('split', ['train', 'test'])
def test_the_bundled_set_is_mnist(split: str) -> None:
    images, labels = load(split).tensors
    assert images.shape == (COUNTS[split], 1, 28, 28) and images.dtype == torch.float32
    assert labels.shape == (COUNTS[split],) and labels.dtype == torch.int64
    assert set(labels.tolist()) == set(range(10))
    # The constants of the normalisation are the train split's own mean and deviation, rounded.
    assert images.mean().abs() < 0.01 and (images.std() - 1).abs() < 0.01


def test_images_are_pixels_scaled_to_one_and_normalised() -> None:
    with gzip.open(data._BUNDLED / f'{IMAGES}.gz') as stream:
        pixels = torch.tensor(list(stream.read()[16 : 16 + 100 * 784])).view(100, 1, 28, 28)
    images = load('test').tensors[0][:100]
    assert torch.allclose(images * 0.3081 + 0.1307, pixels / 255, atol=1e-6)


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError('load opened a connection')

    monkeypatch.setattr(socket, 'socket', refuse)
    assert len(load('test')) == COUNTS['test']


def test_loading_holds_the_unpacked_bytes_once() -> None:
    load('test')
    tracemalloc.start()  # sees Python's memory: the packed and unpacked bytes, not torch's tensors
    load('test')
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * 784 * COUNTS['test']


@given(rows=st.integers(1, 20), packed=st.booleans(), layout=st.sampled_from(['MNIST/raw', 'raw', '.']))
def test_a_set_in_any_layout_of_datadir_is_read_as_written(
    rows: int, packed: bool, layout: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    datadir = tmp_path_factory.mktemp('datadir')
    pixels, labels = digits(rows)
    write(datadir / layout, {IMAGES: idx(pixels), LABELS: idx(labels)}, packed)
    got = load('test', datadir).tensors
    assert torch.allclose(got[0], ((pixels / 255 - 0.1307) / 0.3081).unsqueeze(1), atol=1e-6)
    assert torch.equal(got[1], labels.long())


@given(rows=st.integers(1, 5), packed=st.booleans(), victim=st.sampled_from([IMAGES, LABELS]), cut=st.floats(0, 1))
def test_a_file_that_ends_early_is_named(scratch: Path, rows: int, packed: bool, victim: str, cut: float) -> None:
    pixels, labels = digits(rows)
    folder = write(scratch / str(packed), {IMAGES: idx(pixels), LABELS: idx(labels)}, packed)
    path = folder / (f'{victim}.gz' if packed else victim)
    whole = path.read_bytes()
    path.write_bytes(whole[: min(int(cut * len(whole)), len(whole) - 1)])
    with pytest.raises(ValueError, match=rf'{path.name} .*; copy it anew'):
        load('test', folder)


@given(rows=st.integers(1, 5), victim=st.sampled_from([IMAGES, LABELS]), data=st.data())
def test_a_changed_byte_in_a_packed_file_is_never_read_as_something_else(
    scratch: Path, rows: int, victim: str, data: st.DataObject
) -> None:
    pixels, labels = digits(rows)
    folder = write(scratch / 'changed', {IMAGES: idx(pixels), LABELS: idx(labels)}, packed=True)
    path = folder / f'{victim}.gz'
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        got = load('test', folder).tensors[1].tolist()
    except ValueError as error:  # most bytes
        assert path.name in str(error)
    else:  # the time stamp, and others of gzip's header, stand for nothing
        assert got == labels.tolist()


@given(victim=st.sampled_from([IMAGES, LABELS]), place=st.integers(0, 7), flip=st.integers(1, 255))
def test_a_changed_byte_in_a_header_is_noticed(scratch: Path, victim: str, place: int, flip: int) -> None:
    pixels, labels = digits(3)
    files = {IMAGES: bytearray(idx(pixels)), LABELS: bytearray(idx(labels))}
    files[victim][place] ^= flip
    folder = write(scratch / 'header', files)
    with pytest.raises(ValueError, match=victim):
        load('test', folder)


def faulty_sets() -> dict[str, tuple[dict[str, bytes], str, str]]:
    """What is wrong -> the files, the file that the error must name, a part of the error."""
    pixels, labels = digits(6)
    images, good = idx(pixels), idx(labels)
    ten = labels.clone()
    ten[random.randrange(6)] = 10
    wide = torch.zeros(6, 32, 32, dtype=torch.uint8)
    return {
        'swapped': ({IMAGES: good, LABELS: images}, IMAGES, 'swapped'),
        'one label too few': ({IMAGES: images, LABELS: idx(labels[1:])}, LABELS, '5 labels for the 6 images'),
        'a label of ten': ({IMAGES: images, LABELS: idx(ten)}, LABELS, 'labels are 0 to 9'),
        'another size': ({IMAGES: idx(wide), LABELS: good}, IMAGES, '6 x 32 x 32, not N x 28 x 28'),
        'no samples': ({IMAGES: idx(pixels[:0]), LABELS: idx(labels[:0])}, IMAGES, '0 x 28 x 28'),
        'more than promised': ({IMAGES: images + b'1', LABELS: good}, IMAGES, '4704 bytes, and 4705 follow'),
        'a web page': ({IMAGES: b'<html>403', LABELS: good}, IMAGES, 'not an IDX file'),
        'empty': ({IMAGES: images, LABELS: b''}, LABELS, 'nothing'),
        'packed, but not so named': ({IMAGES: gzip.compress(images), LABELS: good}, IMAGES, 'must end in .gz'),
    }


@pytest.mark.parametrize('fault', faulty_sets())
def test_a_faulty_file_is_named_with_its_fault_and_a_remedy(tmp_path: Path, fault: str) -> None:
    files, culprit, part = faulty_sets()[fault]
    with pytest.raises(ValueError) as caught:
        load('test', write(tmp_path, files))
    message = str(caught.value)
    assert message.startswith(str(tmp_path / culprit)) and part in message and 'leave datadir out' in message
    assert '\n' not in message


def test_a_file_that_is_not_gzip_is_named(tmp_path: Path) -> None:
    pixels, labels = digits(3)
    write(tmp_path, {f'{IMAGES}.gz': idx(pixels), f'{LABELS}.gz': idx(labels)})
    with pytest.raises(ValueError, match=rf'{IMAGES}.gz is not a whole gzip file'):
        load('test', tmp_path)


def test_a_bundled_file_with_another_content_is_refused(bundled_copy: Path) -> None:
    labels = bytearray(gzip.decompress((bundled_copy / f'{LABELS}.gz').read_bytes()))
    labels[random.randrange(8, len(labels))] ^= 1  # still a label, so only the hash can tell
    (bundled_copy / f'{LABELS}.gz').write_bytes(gzip.compress(labels))
    with pytest.raises(ValueError, match=rf'{LABELS}.gz .*SHA-256.*; install fewgpu anew'):
        load('test')


def test_a_missing_bundled_file_is_named(bundled_copy: Path) -> None:
    (bundled_copy / f'{IMAGES}.gz').unlink()
    with pytest.raises(FileNotFoundError, match=rf'{IMAGES}.gz is missing; install fewgpu anew'):
        load('test')


def test_a_datadir_without_mnist_lists_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path, {IMAGES: b''})  # half a pair is no pair
    with pytest.raises(FileNotFoundError) as caught:
        load('test', tmp_path)
    for part in (IMAGES, LABELS, '.gz', str(tmp_path / 'MNIST' / 'raw'), 'leave datadir out'):
        assert part in str(caught.value)


@pytest.mark.parametrize('kind', ['missing', 'file'])
def test_a_datadir_that_is_no_folder_is_named(tmp_path: Path, kind: str) -> None:
    datadir = tmp_path / 'mnist'
    if kind == 'file':
        datadir.write_text('')
    with pytest.raises(FileNotFoundError, match='mnist is not a folder; leave datadir out'):
        load('test', datadir)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="'train' or 'test', not 'val'"):
        load('val')


def numbered(rows: int) -> TensorDataset:
    """A set whose row i holds i, and twice i."""
    return TensorDataset(torch.arange(rows), 2 * torch.arange(rows))


@given(rows=st.integers(1, 60), seed=st.integers(0, 2**32), data=st.data())
def test_a_larger_draw_begins_with_a_smaller_one_and_disturbs_no_random_state(
    rows: int, seed: int, data: st.DataObject
) -> None:
    few, many = sorted(data.draw(st.lists(st.integers(1, rows), min_size=2, max_size=2)))
    before = torch.get_rng_state()
    small, large = subset(numbered(rows), few, seed), subset(numbered(rows), many, seed)
    assert torch.equal(torch.get_rng_state(), before)
    drawn, twice = large.tensors
    assert torch.equal(small.tensors[0], drawn[:few])
    assert len(set(drawn.tolist())) == many and torch.equal(twice, 2 * drawn)


@given(rows=st.integers(1, 60), data=st.data())
def test_without_a_seed_the_first_rows_are_taken_and_copied(rows: int, data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, rows))
    (values, _) = subset(numbered(rows), samples).tensors
    assert values.tolist() == list(range(samples))
    assert values.untyped_storage().nbytes() == samples * values.itemsize


@given(rows=st.integers(1, 60), samples=st.integers(-100, 100))
def test_more_samples_than_there_are_or_none_are_refused(rows: int, samples: int) -> None:
    if 1 <= samples <= rows:
        assert len(subset(numbered(rows), samples)) == samples
    else:
        with pytest.raises(ValueError, match=f'samples must be 1 to {rows}, .* not {samples}'):
            subset(numbered(rows), samples)
