"""What a learner's function returns, as plain values: what it says of itself is not believed.

A class of the learner's may answer `==`, `torch.equal` and `isinstance` as it likes. So a number, text, container or
tensor of such a class is copied into one of Python's or torch's own, and other objects that compare as they like are
refused. Types that were there before the learner's file was read are trusted, and those that no Python code can make.
"""

from collections.abc import Callable
from typing import Any

import torch

_HEAP = 1 << 9   # Py_TPFLAGS_HEAPTYPE: made by a class statement, say
_FLAGS, _MRO = type.__dict__['__flags__'].__get__, type.__dict__['__mro__'].__get__   # no metaclass is asked
_LIES = frozenset({'__eq__', '__ne__', '__class__', '__torch_function__', '__torch_dispatch__', '__getattribute__',
                   '__instancecheck__'})
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__, bytes: bytes.__bytes__,
    list: lambda value: list(list.__iter__(value)), tuple: lambda value: tuple(tuple.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}
_MOST_DEEP = 50
_known: frozenset[int] | None = None   # ids of types, which are kept alive
_kept: tuple[type, ...] = ()


class Lies(Exception):
    """The answer is an object that compares as it likes."""


def know_all_types() -> None:
    """Types that exist now are trusted, and from now on no others."""
    global _known, _kept
    found, new = {object}, [object]
    while new:
        new = [cls for each in new for cls in type.__subclasses__(each) if cls not in found and not found.add(cls)]
    _kept = tuple(found)
    _known = frozenset(map(id, found))


def is_trusted(value: Any) -> bool:
    """Is it of a type that does what its name says?"""
    cls = type(value)
    return _known is None or not _FLAGS(cls) & _HEAP or id(cls) in _known


def plain(value: Any, deep: int = 0) -> Any:
    """The same value, of trusted types as far as it compares. Itself, if it is of such; a copy otherwise.

    Raises Lies for an object of another type that says itself what it is equal to.
    """
    cls = type(value)
    if cls in (list, tuple, dict):
        return _parts(value, deep) if deep < _MOST_DEEP else value
    if is_trusted(value):
        return value
    bases = _MRO(cls)
    if torch.Tensor in bases:
        return _plain_tensor(value)
    for base, made in _PLAIN.items():
        if base in bases:
            return plain(made(value), deep + 1)
    if lies := _LIES.intersection(*[[name for each in bases if id(each) not in _known for name in each.__dict__
                                     if _is_own(each.__dict__[name])]]):
        raise Lies(f'an object of class {cls.__name__}, with {", ".join(sorted(lies))} of its own')
    return value


def _is_own(member: Any) -> bool:
    """Is it written by the learner, and not made by @dataclass?"""
    code = getattr(member, '__code__', None)
    return code is None or code.co_filename != '<string>'


def _parts(value: Any, deep: int) -> Any:
    """A container: itself, if all in it may stay."""
    if type(value) is dict:
        parts = {plain(key, deep + 1): plain(part, deep + 1) for key, part in value.items()}
        same = all(parts.get(key) is part for key, part in value.items()) and len(parts) == len(value)
    else:
        parts = [plain(part, deep + 1) for part in value]
        same = all(map(_is, parts, value))
    return value if same else parts if type(value) is not tuple else tuple(parts)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """The tensor that it is, with its graph. Raises Lies where it computes otherwise than torch."""
    with torch._C.DisableTorchFunctionSubclass():
        if torch._C._dispatch_keys(value).has(torch._C.DispatchKey.Python):
            raise Lies(f'a tensor of class {type(value).__name__}, which computes in its own way')
        return torch.Tensor.as_subclass(value, torch.Tensor)
