"""MNIST as tensors: bundled with the package, checked, never downloaded.

    >>> train = load("train")               # 60,000 images of 1 x 28 x 28, labels 0 to 9
    >>> few = subset(train, 256, seed=0)    # the same 256 rows on every machine

The set comes in four files of the IDX format (LeCun and Cortes, yann.lecun.com/exdb/mnist):

    0 0 8 n | n sizes, 4 bytes each, big-endian | one unsigned byte an entry
    ^^^^^^^ magic number: 8 means unsigned bytes, n is the number of dimensions
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

MEAN, STD = 0.1307, 0.3081  # of all training pixels, scaled to 0..1
CLASSES = 10
SIDE = 28

_BUNDLED = Path(__file__).with_name('mnist')
_PREFIX = {'train': 'train', 'test': 't10k'}

# Of the unpacked content, so that anyone can compare them with the sums of any other copy of MNIST.
_SHA256 = {
    'train-images-idx3-ubyte': 'ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db',
    'train-labels-idx1-ubyte': '65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5',
    't10k-images-idx3-ubyte': '0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7',
    't10k-labels-idx1-ubyte': 'ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2',
}


def load(split: str = 'train', datadir: str | os.PathLike[str] | None = None) -> TensorDataset:
    """Return a split of MNIST as (images, labels).

    images: float32, N x 1 x 28 x 28, scaled to 0..1 and normalised by the mean 0.1307 and the
    standard deviation 0.3081; labels: int64, N, 0 to 9. N is 60,000 (train) or 10,000 (test).

    Without ``datadir``, the bundled files are read and compared with their SHA-256. With it, the
    files in torchvision's layout, ``datadir/MNIST/raw/``, or in ``datadir`` itself, with or without
    .gz. Those may be another set of the same form (a part of MNIST, Fashion-MNIST): magic numbers,
    sizes, lengths and labels are checked, hashes are not.

    Raises ValueError for an unknown split or a damaged file, FileNotFoundError for a missing one.
    """
    if split not in _PREFIX:
        raise ValueError(f"split is 'train' or 'test', not {split!r}")
    names = [f'{_PREFIX[split]}-{what}-ubyte' for what in ('images-idx3', 'labels-idx1')]
    if datadir is None:
        image_path, label_path = [_BUNDLED / f'{name}.gz' for name in names]
        hashes = [_SHA256[name] for name in names]
    else:
        image_path, label_path = _find_pair(Path(datadir).expanduser(), names)
        hashes = [None, None]
    pixels = _read_idx(image_path, (SIDE, SIDE), hashes[0])
    labels = _read_idx(label_path, (), hashes[1])
    if len(pixels) != len(labels):
        raise _fault(label_path, f'holds {len(labels)} labels for the {len(pixels)} images of {image_path}')
    if labels.max() >= CLASSES:
        raise _fault(label_path, f'holds the label {labels.max()}, where labels are 0 to {CLASSES - 1}')
    images = pixels.unsqueeze(1).to(torch.float32)
    images.div_(255).sub_(MEAN).div_(STD)  # in place: the train split takes 188 MB
    return TensorDataset(images, labels.to(torch.int64))


def subset(dataset: TensorDataset, samples: int, seed: int | None = None) -> TensorDataset:
    """Return ``samples`` rows of ``dataset``: the first ones or, with a ``seed``, a random draw.

    A draw depends on nothing but the seed and the size of ``dataset``, and leaves torch's own
    random state alone; a larger draw with the same seed begins with the rows of a smaller one.
    The rows are copied, so that the full set can be let go.

    Raises ValueError for fewer than one sample, or for more than there are.
    """
    if not 1 <= samples <= len(dataset):
        raise ValueError(f'samples must be 1 to {len(dataset)}, as many as there are, not {samples}')
    if seed is None:
        rows = torch.arange(samples)
    else:
        rows = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))[:samples]
    return TensorDataset(*(tensor[rows] for tensor in dataset.tensors))


def _find_pair(datadir: Path, names: list[str]) -> list[Path]:
    """The paths of two files in the first folder at or below ``datadir`` that has both."""
    remedy = 'leave datadir out to use the MNIST bundled with fewgpu'
    if not datadir.is_dir():
        raise FileNotFoundError(f'datadir {datadir} is not a folder; {remedy}')
    folders = [datadir / 'MNIST' / 'raw', datadir / 'raw', datadir]
    for folder in folders:
        files = [_either(folder / name) for name in names]
        if all(files):
            return files
    raise FileNotFoundError(
        f"no MNIST in datadir {datadir}: looked for {' and '.join(names)}, each with or without .gz, "
        f"in {', '.join(map(str, folders))}; {remedy}"
    )


def _either(path: Path) -> Path | None:
    """``path`` unpacked or packed, whichever is there."""
    return next((file for file in (path, path.with_name(f'{path.name}.gz')) if file.is_file()), None)


def _read_idx(path: Path, shape: tuple[int, ...], sha256: str | None) -> Tensor:
    """Read an IDX file of N entries of ``shape`` (uint8, N x shape); errors name the file and its fault."""
    content, digest = bytearray(), hashlib.sha256()
    try:
        with gzip.open(path) if path.suffix == '.gz' else path.open('rb') as stream:
            header = stream.read(4 + 4 * (1 + len(shape)))
            digest.update(header)
            # Piece by piece into a buffer that torch may write to: no second copy of 47 MB.
            while piece := stream.read(1 << 20):
                digest.update(piece)
                content += piece
    except FileNotFoundError:
        raise FileNotFoundError(f'{path} is missing; {_remedy(path)}') from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _fault(path, f'is not a whole gzip file ({error})') from None
    sizes = _check_header(path, header, shape)
    expected = math.prod(sizes)
    if len(content) != expected:
        raise _fault(path, f'is damaged: its header promises {expected} bytes, and {len(content)} follow')
    if sha256 is not None and digest.hexdigest() != sha256:
        raise _fault(path, 'is not the file that fewgpu was published with (its SHA-256 differs)')
    return torch.frombuffer(content, dtype=torch.uint8).view(sizes)


def _check_header(path: Path, header: bytes, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that an IDX header gives, once it is what ``shape`` asks for."""
    if header.startswith(b'\x1f\x8b'):
        raise _fault(path, 'is packed by gzip, so its name must end in .gz')
    if not header.startswith(b'\0\0\x08'):
        raise _fault(path, f"is not an IDX file of bytes (it begins with {header[:4].hex(' ') or 'nothing'})")
    if header[3:4] != bytes([1 + len(shape)]):
        what = 'images have 3 dimensions and labels 1: are the two swapped?'
        raise _fault(path, f"has {header[3] if header[3:] else 'no'} dimensions, but {what}")
    if len(header) < 4 + 4 * (1 + len(shape)):
        raise _fault(path, 'is damaged: it ends within its header')
    sizes = struct.unpack(f'>{1 + len(shape)}I', header[4:])
    if sizes[0] == 0 or sizes[1:] != shape:
        wanted = ' x '.join(map(str, ('N', *shape)))
        raise _fault(path, f"is of size {' x '.join(map(str, sizes))}, not {wanted}")
    return sizes


def _fault(path: Path, what: str) -> ValueError:
    """The error for a file that is there, but wrong."""
    return ValueError(f'{path} {what}; {_remedy(path)}')


def _remedy(path: Path) -> str:
    if path.parent == _BUNDLED:
        return 'install fewgpu anew, or restore the file with git'
    return 'copy it anew, or leave datadir out to use the MNIST bundled with fewgpu'
