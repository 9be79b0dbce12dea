"""For the grader of exercise 14: what a wrong forward or backward of a layer in tiles gives."""

from collections.abc import Callable

import torch

from fewgpu.workshop.graders.tiles import Layer, Tensor, gradients

Columns = Callable[[Layer, int], slice]


def _outputs(layer: Layer) -> list[Tensor]:
    w, b, x, _ = layer.tensors()
    return list((x @ w.T + b).split(list(layer.rows), dim=1))


def _without_bias(layer: Layer) -> Tensor:
    w, _, x, _ = layer.tensors()
    return x @ w.T


def _not_transposed(layer: Layer) -> Tensor:
    w, b, x, _ = layer.tensors()
    return torch.cat([x @ tile + part for tile, part in zip(w.split(list(layer.rows)), b.split(list(layer.rows)))], 1)


def _bias_twice(layer: Layer) -> Tensor:
    return 2 * torch.cat(_outputs(layer), 1) - _without_bias(layer)


def _equal_tiles(layer: Layer, columns: Columns, width: int) -> Tensor:
    """In an output of that width, which is made before."""
    y = torch.zeros(layer.count, width, dtype=torch.float64)
    for k, part in enumerate(_outputs(layer)):
        y[:, columns(layer, k)] = part
    return y


def _of_x(layer: Layer, columns: Columns) -> list[Tensor]:
    """What every tile gives to x, from these columns of the gradient."""
    w, _, _, gradient = layer.tensors()
    return [gradient[:, columns(layer, k)] @ tile for k, tile in enumerate(w.split(list(layer.rows)))]


def _written(layer: Layer, columns: Columns) -> list[tuple[Tensor, Tensor]]:
    _, _, x, gradient = layer.tensors()
    parts = [gradient[:, columns(layer, k)] for k in range(len(layer.rows))]
    return [(part.T @ x, part.sum(dim=0)) for part in parts]


def _own(layer: Layer, k: int) -> slice:
    return slice(sum(layer.rows[:k]), sum(layer.rows[:k + 1]))


def _columns(misconception: str) -> list[Columns]:
    """The wrong ones."""
    return {
        'equal-tiles': [lambda layer, k: slice(k * layer.rows[0], (k + 1) * layer.rows[0]),
                        lambda layer, k: slice(k * layer.rows[k], (k + 1) * layer.rows[k]),
                        lambda layer, k: slice(k * (each := sum(layer.rows) // len(layer.rows)), (k + 1) * each),
                        lambda layer, k: slice(k * (each := -(-sum(layer.rows) // len(layer.rows))), (k + 1) * each)],
        'same-columns': [lambda layer, k: slice(0, layer.rows[k])],
        'whole-gradient': [lambda layer, k: slice(None)],
    }[misconception]


def _rows_for_columns(layer: Layer) -> Tensor:
    w, _, _, gradient = layer.tensors()
    return sum(gradient[_own(layer, k)] @ tile for k, tile in enumerate(w.split(list(layer.rows))))


def _with_bias(layer: Layer, bias: Callable[[Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
    _, _, _, gradient = layer.tensors()
    return [(of_weight, bias(gradient[:, _own(layer, k)])) for k, (of_weight, _) in enumerate(gradients(layer))]


def _all_rows(layer: Layer) -> list[tuple[Tensor, Tensor]]:
    """Those of tiles 0 to k together, for tile k."""
    return [tuple(sum(parts) for parts in zip(*gradients(layer)[:k + 1])) for k in range(len(layer.rows))]


WRONG_FORWARDS = [
    ('bias-forgotten', _without_bias),
    ('tiles-below', lambda layer: torch.cat(_outputs(layer))),
    ('tiles-below', lambda layer: torch.stack(_outputs(layer))),
    ('outputs-added', lambda layer: sum(_outputs(layer))),
    ('last-tile', lambda layer: _outputs(layer)[-1]),
    ('backwards', lambda layer: torch.cat(_outputs(layer)[::-1], 1)),
    ('bias-twice', _bias_twice),
    *(('equal-tiles', lambda layer, each=each, wide=wide: _equal_tiles(layer, each, wide(layer)))
      for each in _columns('equal-tiles')
      for wide in (lambda layer: sum(layer.rows), lambda layer: layer.rows[0] * len(layer.rows))),
    ('not-transposed', _not_transposed),
]

COLUMNS = ('equal-tiles', 'same-columns', 'whole-gradient')

WRONG_BACKWARDS = [
    ('gradient-overwritten', lambda layer: _of_x(layer, _own)[-1]),
    ('joined', lambda layer: torch.cat(_of_x(layer, _own), 1)),
    ('joined', lambda layer: torch.cat(_of_x(layer, _own))),
    ('gradient-averaged', lambda layer: sum(_of_x(layer, _own)) / len(layer.rows)),
    ('rows-for-columns', _rows_for_columns),
    ('rows-for-columns', lambda layer: torch.zeros_like(layer.tensors()[2]).add_(_rows_for_columns(layer))),
    *((name, lambda layer, each=each: sum(_of_x(layer, each))) for name in COLUMNS for each in _columns(name)),
    ('all-tiles-added', lambda layer: _all_rows(layer) and sum(_of_x(layer, _own))),   # where it can add up at all
]

WRONG_GRADIENTS = [
    ('bias-gradient', lambda layer: _with_bias(layer, lambda part: part)),
    ('bias-gradient', lambda layer: _with_bias(layer, lambda part: part.mean(dim=0))),
    ('bias-gradient', lambda layer: _with_bias(layer, lambda part: part.sum(dim=1))),
    ('bias-gradient', lambda layer: _with_bias(layer, lambda part: part.sum())),
    ('bias-gradient', lambda layer: _with_bias(layer, lambda part: torch.ones_like(part[0]))),
    ('weight-gradient-turned', lambda layer: [(of_weight.T, of_bias) for of_weight, of_bias in gradients(layer)]),
    ('all-tiles-added', _all_rows),
    *(('divided', lambda layer, parts=parts, by=by: [
        tuple(part / (by(layer) if n in parts else 1) for n, part in enumerate(each)) for each in gradients(layer)])
      for parts in ((0, 1), (0,)) for by in (lambda layer: layer.count, lambda layer: len(layer.rows))),
    *((name, lambda layer, each=each: _written(layer, each)) for name in COLUMNS for each in _columns(name)),
]
