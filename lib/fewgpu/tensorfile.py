"""A file of tensors: raw bytes behind a small header, verified when they are read. No pickle.

    FEWGPU-1   length and checksum of the header   header (JSON)   the bytes of each tensor

The header has the dtype and shape of each tensor and a checksum of every MiB of it, so that a part
is verified without the rest being read.
"""

import json
import math
import os
import struct
import zlib
from typing import Any, BinaryIO

import torch

_MAGIC, _HEAD, _BLOCK = b'FEWGPU-1', struct.Struct('<QI'), 2**20
#: What can be kept, by the name in the header.
DTYPES = {str(dtype): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}


class Damaged(Exception):
    """A file is not as it was written."""


def dump(file: BinaryIO, tensors: list[torch.Tensor], about: Any) -> None:
    """Write dense tensors of the host, and `about`, whatever JSON can hold."""
    raw = [_bytes_of(tensor) for tensor in tensors]
    header = json.dumps({'about': about, 'tensors': [
        [str(tensor.dtype), [*tensor.shape], _checksums(data)]
        for tensor, data in zip(tensors, raw)]}).encode()
    file.write(_MAGIC + _HEAD.pack(len(header), zlib.crc32(header)) + header)
    for data in raw:
        file.write(data)


def load(file: BinaryIO, header: dict, part: slice | None = None) -> list[torch.Tensor]:
    """The tensors, or a part of the elements of each, flat. Raises Damaged, and OSError as `read` does."""
    tensors, place = [], file.tell()
    for name, shape, checksums in header['tensors']:
        tensors.append(_load_one(file, place, DTYPES[name], shape, checksums, part))
        place += math.prod(shape) * DTYPES[name].itemsize
    return tensors


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def _checksums(data: memoryview) -> list[int]:
    return [zlib.crc32(data[start:start + _BLOCK]) for start in range(0, len(data), _BLOCK)]


def header_of(file: BinaryIO) -> dict:
    """What the file says about itself; then `load` may follow. Raises Damaged."""
    start = file.read(len(_MAGIC) + _HEAD.size)
    if len(start) < len(_MAGIC) + _HEAD.size or not start.startswith(_MAGIC):
        raise Damaged('it does not begin as a file of a store')
    length, checksum = _HEAD.unpack(start[len(_MAGIC):])
    header = file.read(min(length, os.fstat(file.fileno()).st_size))
    if len(header) != length or zlib.crc32(header) != checksum:
        raise Damaged('its header is damaged')
    return json.loads(header)


def _load_one(file: BinaryIO, place: int, dtype: torch.dtype, shape: list[int], checksums: list[int],
              part: slice | None) -> torch.Tensor:
    count = math.prod(shape)
    first, last, step = (part or slice(None)).indices(count)
    if step != 1:
        raise ValueError(f'a part has a start and a stop, and no step of {step}')
    start, stop = first * dtype.itemsize, max(first, last) * dtype.itemsize
    blocks = range(start // _BLOCK, -(-stop // _BLOCK))   # those that the part touches, whole
    begin, end = blocks.start * _BLOCK, min(blocks.stop * _BLOCK, count * dtype.itemsize)
    raw = torch.empty(max(0, end - begin), dtype=torch.uint8)
    file.seek(place + begin)
    if file.readinto(raw.numpy()) != len(raw):
        raise Damaged('it ends too early')
    if _checksums(memoryview(raw.numpy())) != checksums[blocks.start:blocks.stop]:
        raise Damaged('some of its bytes have changed since they were written')
    chosen = raw[start - begin:stop - begin]
    return chosen.view(dtype).view(shape) if part is None else chosen.clone().view(dtype)
