"""For the grader of exercise 14: which law a layer in tiles breaks first, and what is behind it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fewgpu.ledger import Counting, Ledger
from fewgpu.workshop.graders.tiles import Layer, Tensor, gradients
from fewgpu.workshop.graders.wrong_tiles import WRONG_BACKWARDS, WRONG_FORWARDS, WRONG_GRADIENTS
from fewgpu.workshop.grading.grader import Failure, InCase
from fewgpu.workshop.grading.law import close, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.disk import Disk, Misused


def _ran(work: Work, name: str, layer: Layer, room: float = 1) -> tuple[Disk, Any, Exception | None]:
    disk, (_, _, x, gradient) = layer.disk(room), layer.tensors()
    arguments = (disk, x) if name == 'tiled_forward' else (disk, x, gradient)
    function = getattr(work, name)
    try:
        result = function(*arguments)
    except Exception as error:
        return disk, None, error
    if not torch.equal(x, layer.tensors()[2]) or not torch.equal(gradient, layer.tensors()[3]):
        raise _failure(work, name, layer, 'callers-tensor', '')
    return disk, result, None


def _failure(work: Work, name: str, layer: Layer, misconception: str, message: str, got: Any = None,
             wanted: Any = None, error: Exception | None = None) -> Failure:
    lines = work.lines(error.__traceback__) if error is not None else work.definition(name)
    told = '' if wanted is None else f'\nyours     {shown(got)}\nexpected  {shown(wanted)}'
    return Failure(message, misconception=misconception, case=f'{layer}; rows of x: {layer.count}{told}', lines=lines)


def _memory(work: Work, name: str, layer: Layer, error: Misused) -> Failure:
    """Why there was no room: are tiles ever freed?"""
    disk, *_ = _ran(work, name, layer, room=4 * len(layer.rows))
    never = 'free' not in [event.kind for event in disk.events]
    return _failure(work, name, layer, 'tiles-stay' if never else 'next-too-early', error.detail, error=error)


def check_forward(work: Work, cases: list[Layer]) -> None:
    """Raise Failure for the first layer whose output is not that of the plain one, with one tile in memory."""
    given = [(layer, *_ran(work, 'tiled_forward', layer)) for layer in cases]
    for layer, disk, result, error in given:
        if isinstance(error, Misused) and error.misconception == 'no-room':
            raise _memory(work, 'tiled_forward', layer, error)
        w, b, x, _ = layer.tensors()
        right = error is None and isinstance(result, Tensor) and close(result, x @ w.T + b)
        if not right:
            named = _named(WRONG_FORWARDS, [(layer, result, error) for layer, _, result, error in given])
            if not named and error is None:
                _verify_order(work, 'tiled_forward', layer, disk)
            _raise(work, 'tiled_forward', layer, result, x @ w.T + b, error, named)
        _verify_order(work, 'tiled_forward', layer, disk)
    _verify_memory(work, 'tiled_forward')


def _raise(work: Work, name: str, layer: Layer, got: Any, wanted: Any, error: Exception | None, named: str) -> None:
    if error is not None:
        raise InCase(error, f'{layer}; rows of x: {layer.count}', named)
    if got is None:
        raise _failure(work, name, layer, 'returns-nothing', '')
    if not isinstance(got, Tensor):
        raise _failure(work, name, layer, 'wrong-type', f'It is a {type(got).__name__}.')
    named = named or ('after-free' if bool(got.isnan().any()) else '')
    told = '' if got.shape == wanted.shape else f'Its shape is {tuple(got.shape)}; it should be {tuple(wanted.shape)}.'
    told = f'Its numbers are {got.dtype}; they should be {wanted.dtype}.' if got.dtype != wanted.dtype else told
    raise _failure(work, name, layer, named, told, got, wanted)


def _verify_order(work: Work, name: str, layer: Layer, disk: Disk) -> None:
    if sorted(disk.numbers('read')) != list(range(len(layer.rows))):
        raise _failure(work, name, layer, 'tiles-again', f'It reads the tiles {disk.numbers("read")}.')
    if disk.held:
        raise _failure(work, name, layer, 'tiles-stay', f'At the end tile {disk.held[0].number} is still in memory.')


class _Away(Disk):
    """What is written leaves the memory."""

    def write(self, number: int, *tensors: Tensor) -> None:
        pass


LARGE = Layer((64,) * 12, 64, 1)   # a tile has half a dozen times as many numbers as the output of all


def _verify_memory(work: Work, name: str) -> None:
    """Raise Failure if tiles that have been freed are still there by other names: counted tensor by tensor."""
    w, b, x, gradient = LARGE.tensors()
    rows, ledger = list(LARGE.rows), Ledger()
    disk = _Away([*zip(w.split(rows), b.split(rows))], room=1)
    with Counting(ledger):
        getattr(work, name)(*((disk, x) if name == 'tiled_forward' else (disk, x, gradient)))
    tile = w.nbytes // len(rows)
    if ledger.peak > 6 * tile:   # also a tile's gradients, and copies of these two
        raise _failure(work, name, LARGE, 'tiles-copied', f'At the peak there are as many bytes as in '
                       f'{ledger.peak / tile:.1f} of {len(rows)} tiles.')


def check_backward(work: Work, cases: list[Layer]) -> None:
    """As above, for the backward: the gradient of x, those of the tiles, and when they are given back."""
    given = [(layer, *_ran(work, 'tiled_backward', layer)) for layer in cases]
    for layer, disk, result, error in given:
        if isinstance(error, Misused) and error.misconception == 'no-room':
            raise _memory(work, 'tiled_backward', layer, error)
        w, _, x, gradient = layer.tensors()
        right = error is None and isinstance(result, Tensor) and close(result, gradient @ w)
        if not right:
            named = _named(WRONG_BACKWARDS, [(layer, result, error) for layer, _, result, error in given])
            if not named and error is None:
                _verify_order(work, 'tiled_backward', layer, disk)
            _raise(work, 'tiled_backward', layer, result, gradient @ w, error, named)
    for layer, disk, *_ in given:
        _verify_written(work, layer, disk, [(each, other.written) for each, other, *_ in given])
        _verify_order(work, 'tiled_backward', layer, disk)
    _verify_memory(work, 'tiled_backward')


def _verify_written(work: Work, layer: Layer, disk: Disk, given: list[tuple[Layer, dict]]) -> None:
    name = 'tiled_backward'
    if len(disk.written) < len(layer.rows):
        raise _failure(work, name, layer, 'not-written', f'Written are those of the tiles {[*disk.written]}.')
    for k, wanted in enumerate(gradients(layer)):
        got = disk.written[k]
        if len(got) != 2:
            raise _failure(work, name, layer, '', f'Two gradients belong to a tile, not {len(got)}.')
        for what, mine, true in zip(('weight', 'bias'), got, wanted):
            if not close(mine, true):
                nans = 'after-free' if bool(mine.isnan().any()) else ''
                shape = '' if mine.shape == true.shape else f' (its shape is {tuple(mine.shape)})'
                raise _failure(work, name, layer, _written(given) or nans,
                               f'The gradient of the {what} of tile {k} is not right{shape}.', mine, true)
    reads = [(event.kind, event.number) for event in disk.events if event.kind in ('read', 'write')]
    for k in range(len(layer.rows)):
        if reads[reads.index(('write', k)) - 1] != ('read', k):
            raise _failure(work, name, layer, 'written-late', f'What comes, in order: '
                           f'{", ".join(f"{kind} {number}" for kind, number in reads[:6])}.')


def _named(suspects: list[tuple[str, Callable[[Layer], Tensor]]], given: list[tuple]) -> str:
    """What would have given all that, or raised where something was raised."""
    def explains(wrong: Callable[[Layer], Tensor], layer: Layer, got: Any, error: Exception | None) -> bool:
        try:
            predicted = wrong(layer)
        except Exception:
            return error is not None
        return error is None and isinstance(got, Tensor) and close(got, predicted)
    return next((name for name, wrong in suspects if all(explains(wrong, *each) for each in given)), '')


def _written(given: Sequence[tuple[Layer, dict[int, tuple]]]) -> str:
    """What would have given the gradients of all tiles of all layers. (A tile without any explains nothing.)"""
    def explains(wrong: Callable, layer: Layer, written: dict[int, tuple]) -> bool:
        try:
            predicted = wrong(layer)
        except RuntimeError:
            return len(written) < len(layer.rows)
        return all(close(written.get(k, ()), each) for k, each in enumerate(predicted))
    return next((name for name, wrong in WRONG_GRADIENTS if all(explains(wrong, *each) for each in given)), '')
