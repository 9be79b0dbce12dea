"""How a message looks between processes: a head of fixed size, and what does not fit into it.

    head:   sizes and numbers | name, structure | small tensors | (unused)
    parts:  the structure if it is too long for the head; each tensor that did not fit

So a small message is one transfer, and a receiver knows what to expect: it asks for a head, and the
head tells the parts. The structure names containers, numbers and text, and of each tensor dtype,
shape, order of its dimensions in memory and `requires_grad`. Nothing is pickled, and what comes is
not believed: whatever the bytes are, `decode` returns a value or raises `Garbled`, and takes no
memory for parts that this machine could not hold.
"""

import math
import os
from collections.abc import Callable, Sequence
from struct import Struct, error as StructError
from typing import Any

import torch

from fewgpu.schedule import Message

HEAD = 8192   # bytes
MOST_DEEP = 100          # containers in containers
MOST_STRUCTURE = 2**24   # bytes
MOST_TENSORS = 2**16     # of one message
_MEMORY = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') if hasattr(os, 'sysconf') else 2**40

_START = Struct('<IqiiiiiB')   # length of the structure, step, the Message's numbers, length of `what`
_COUNT, _TENSOR = Struct('<I'), Struct('<BBB')   # _TENSOR: dtype, ndim, flags
_ROOM = HEAD - _START.size
_NEEDS_GRADIENT, _PERMUTED = 1, 2
_BROKEN = 'it is cut short'
_DTYPES = tuple(dict.fromkeys(dtype for _, dtype in sorted(vars(torch).items())
                              if isinstance(dtype, torch.dtype)))
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_NUMBERS = {bool: (b'b', Struct('<?')), int: (b'i', Struct('<q')), float: (b'f', Struct('<d')),
            complex: (b'c', Struct('<dd'))}
_NUMBER_OF = {tag[0]: (kind, struct) for kind, (tag, struct) in _NUMBERS.items()}
_CONTAINERS = {tuple: b't', list: b'l', dict: b'd'}
_SHAPES = tuple(Struct(f'<{ndim}q') for ndim in range(65))


class Garbled(RuntimeError):
    """What came from another rank is no message of the kit's."""

    def __init__(self, why: object) -> None:
        super().__init__(f'what came is no message of the kit ({why}): do all ranks run the same version of it, and '
                         f'does nobody else use their ports?')


def encode(step: int, message: Message, value: Any) -> list[torch.Tensor]:
    """The tensors to send, the head (uint8, of HEAD bytes) first. Those of `value` are on the CPU;
    they may be sent as they are, so nobody may change them before they have left.

    Raises TypeError if something in `value` cannot travel, or is nested too deep or too large.
    """
    what, *numbers = message
    name = what.encode()
    structure, tensors = bytearray(name), []
    _write(value, structure, tensors)
    if len(structure) > MOST_STRUCTURE or len(tensors) > MOST_TENSORS:
        raise TypeError(f'{len(tensors)} tensors, with {len(structure)} bytes of numbers and text round them, are too '
                        f'much to travel from a stage to another rank: let the layer return few tensors')
    head = bytearray(HEAD)
    _START.pack_into(head, 0, len(structure), step, *numbers, len(name))
    sent = [torch.frombuffer(head, dtype=torch.uint8)]
    if len(structure) <= _ROOM:
        head[_START.size:_START.size + len(structure)] = structure
    else:
        sent.append(torch.frombuffer(structure, dtype=torch.uint8))
    for tensor, place in zip(tensors, _places(len(structure), tensors)):
        if place is None:
            sent.append(tensor)
        elif tensor.numel():
            sent[0][place] = _bytes_of(tensor)
    return sent


def decode(head: torch.Tensor, receive: Callable[[Sequence[torch.Tensor]], None]
           ) -> tuple[int, Message, Any]:
    """The step, the message and its value, of which nothing shares memory with `head`.

    `receive` fills the tensors it is given with the parts that come next, in order. Raises Garbled for what
    `encode` has not written, and what `receive` raises.
    """
    length, step, *numbers, name = _START.unpack_from(head.numpy())
    if not name <= length <= MOST_STRUCTURE:
        raise Garbled(f'a structure of {length} bytes')
    structure = head[_START.size:_START.size + length]
    if length > _ROOM:
        receive([structure := torch.empty(length, dtype=torch.uint8)])
    reader = _Reader(structure.numpy().data, name)
    try:
        what, value = bytes(structure.numpy()[:name]).decode(), reader.whole()
    except (LookupError, ValueError, TypeError, RuntimeError, MemoryError, OverflowError, StructError) as error:
        raise error if isinstance(error, Garbled) else Garbled(str(error).partition('\n')[0][:200]) from None
    parts = []
    for tensor, place in zip(reader.tensors, _places(length, reader.tensors)):
        if place is None:
            parts.append(tensor)
        elif tensor.numel():
            _bytes_of(tensor).copy_(head[place])
    if parts:
        receive(parts)
    return step, Message(what, *numbers), value


def _places(length: int, tensors: Sequence[torch.Tensor]) -> list[slice | None]:
    """Where in the head each tensor rides, if it fits; both sides come to the same answer."""
    at = _START.size + (length if length <= _ROOM else 0)
    places: list[slice | None] = []
    for tensor in tensors:
        fits = at + tensor.nbytes <= HEAD
        places.append(slice(at, at + tensor.nbytes) if fits else None)
        at += tensor.nbytes if fits else 0
    return places


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    # (A tensor of one number is contiguous whatever its strides are, but not to be viewed as bytes.)
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _write(value: Any, out: bytearray, tensors: list[torch.Tensor], deep: int = 0) -> None:
    """Append the structure of `value` to `out`, and its tensors to `tensors`."""
    kind = type(value)
    if deep > MOST_DEEP:
        raise TypeError(f'containers in containers, more than {MOST_DEEP} deep, cannot travel from a stage to another '
                        f'rank (does one hold itself?): let the layer return plain tuples, lists and dicts')
    if isinstance(value, torch.Tensor):
        _write_tensor(value, out, tensors)
    elif value is None:
        out += b'n'
    elif kind in _NUMBERS:
        tag, struct = _NUMBERS[kind]
        if kind is int and not -2**63 <= value < 2**63:
            out += b'I'
            return _write(f'{value:x}', out, tensors)
        out += tag
        out += struct.pack(value.real, value.imag) if kind is complex else struct.pack(value)
    elif kind is str:
        text = value.encode()
        out += b's' + _COUNT.pack(len(text)) + text
    elif kind in _CONTAINERS:
        out += _CONTAINERS[kind] + _COUNT.pack(len(value))
        for item in value:
            _write(item, out, tensors, deep + 1)
            if kind is dict:
                _write(value[item], out, tensors, deep + 1)
    else:
        raise TypeError(f'a {kind.__module__}.{kind.__qualname__} cannot travel from a stage to '
                        f'another rank: let the layer return tensors, None, numbers and text in plain '
                        f'tuples, lists and dicts')


def _write_tensor(tensor: torch.Tensor, out: bytearray, tensors: list[torch.Tensor]) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f'a tensor of layout {tensor.layout} or a quantized one cannot travel from a '
                        f'stage to another rank: let the layer return it dense, as x.to_dense() or '
                        f'x.dequantize()')
    flags = _NEEDS_GRADIENT if tensor.requires_grad else 0
    data, order = tensor.detach().resolve_conj().resolve_neg(), None
    if not data.is_contiguous():   # keep the order in memory, such as channels-last, if it is dense
        order = sorted(range(data.dim()), key=data.stride, reverse=True)
        if data.permute(order).is_contiguous():
            data, flags = data.permute(order), flags | _PERMUTED
        else:
            data = data.contiguous()
    out += b'x' + _TENSOR.pack(_CODES[data.dtype], data.dim(), flags)
    out += _SHAPES[data.dim()].pack(*data.shape)
    if flags & _PERMUTED:
        out += bytes(order)
    tensors.append(data)


class _Reader:
    """Reads what `_write` wrote. The tensors are empty yet: `tensors` are to be filled."""

    def __init__(self, structure: memoryview, at: int) -> None:
        self._structure, self._at = structure, at
        self._bytes = 0   # of all tensors
        self.tensors: list[torch.Tensor] = []

    def whole(self) -> Any:
        value = self.read()
        if self._at != len(self._structure):
            raise Garbled('something follows its end')
        return value

    def read(self, deep: int = 0) -> Any:
        if deep > MOST_DEEP:
            raise Garbled('it is nested too deep')
        tag = self._structure[self._at]
        self._at += 1
        if tag == b'x'[0]:
            return self._read_tensor()
        if tag == b'n'[0]:
            return None
        if tag in _NUMBER_OF:
            kind, struct = _NUMBER_OF[tag]
            return kind(*self._take(struct))
        if tag == b'I'[0]:
            return int(self.read(deep + 1), 16)
        count, = self._take(_COUNT)
        if count > len(self._structure) - self._at:   # each item takes a byte at least
            raise Garbled(_BROKEN)
        if tag == b's'[0]:
            return self._take_bytes(count).decode()
        if tag == b'd'[0]:
            return {self.read(deep + 1): self.read(deep + 1) for _ in range(count)}
        if tag not in b'tl':
            raise Garbled(f'a value of kind {tag}')
        items = [self.read(deep + 1) for _ in range(count)]
        return tuple(items) if tag == b't'[0] else items

    def _read_tensor(self) -> torch.Tensor:
        code, ndim, flags = self._take(_TENSOR)
        shape, dtype = self._take(_SHAPES[ndim]), _DTYPES[code]
        if min(shape, default=0) < 0 or flags & ~(_NEEDS_GRADIENT | _PERMUTED) or len(self.tensors) >= MOST_TENSORS:
            raise Garbled('a tensor that cannot be')
        self._bytes += math.prod(shape) * dtype.itemsize
        if self._bytes > _MEMORY or max(shape, default=0) > _MEMORY:
            raise Garbled('tensors larger than the memory of this machine')
        data = torch.empty(shape, dtype=dtype)
        self.tensors.append(data)
        if flags & _PERMUTED:
            order = self._take_bytes(ndim)
            data = data.permute([order.index(dimension) for dimension in range(ndim)])
        return data.detach().requires_grad_() if flags & _NEEDS_GRADIENT else data

    def _take(self, struct: Struct) -> tuple:
        at, self._at = self._at, self._at + struct.size
        return struct.unpack_from(self._structure, at)

    def _take_bytes(self, count: int) -> bytes:
        at, self._at = self._at, self._at + count
        if self._at > len(self._structure):
            raise Garbled(_BROKEN)
        return bytes(self._structure[at:self._at])
