"""Loss scaling: small gradients survive half precision (Micikevicius et al., arXiv 1710.03740, section 3.2).

    pipeline = Pipeline(model, balance, loss_fn=..., optimizer=..., loss_scale=LossScale())
    with torch.autocast('cuda', torch.float16):
        loss = pipeline.step(x, y)

Every backward starts from the scale instead of 1, so all gradients are that many times larger; before an update
they are divided by it. The scale is dynamic: after an overflow the update is left out and the scale shrinks, after
`interval` updates without one it grows.

torch.amp.GradScaler does the same for who calls `backward` and the optimizer's `step` himself. In an engine that
has its optimizers itself, stages must agree before any of them updates; here they do. bfloat16 has the range of
float32, and needs no scale.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import torch

from fewgpu.weights import Gradients

_LEAST, _MOST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max   # gradients, too, have to hold it


class LossScale:
    """A dynamic loss scale; `scale` is what it is now.

    Arguments:
        initial: the first one.
        growth: by what it is multiplied after `interval` updates without an overflow.
        backoff: by what it is multiplied after an overflow.

    Powers of two round nothing. Save it with the run: `training_state(model, loss_scale=loss_scale)`. Raises
    ValueError for figures that mean nothing, or a scale that float32 does not hold; FloatingPointError, instead of
    one more update, when gradients overflow with the smallest scale, too.
    """

    def __init__(self, initial: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5,
                 interval: int = 2000) -> None:
        numbers = all(isinstance(each, Real) and math.isfinite(each) for each in (initial, growth, backoff, interval))
        if not (numbers and initial > 0.0 and growth >= 1.0 and 0.0 < backoff < 1.0 and interval >= 1
                and interval % 1 == 0):
            raise ValueError(f'a scale is above 0, its growth at least 1, its backoff between 0 and 1, and the '
                             f'interval a whole number of updates, at least 1, not {initial!r}, {growth!r}, '
                             f'{backoff!r} and {interval!r}')
        self.scale, self.growth, self.backoff, self.interval = _verified(initial), growth, backoff, interval
        self._good = 0   # updates since the last overflow or growth
        self._left_out = False

    def unscale(self, gradients: Iterable[torch.Tensor]) -> bool:
        """Divide gradients by the scale, in place. Are all of them finite?"""
        finite = True
        for gradient in gradients:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            finite &= bool(values.isfinite().all())
            gradient.mul_(1.0 / self.scale)
        return finite

    def unscaled_or_none(self, gradients: Gradients) -> Gradients:
        """For a stage that updates by itself: its gradients, divided; none at all if one is not finite."""
        if self.unscale(gradient for gradient in gradients.values() if gradient is not None):
            return gradients
        self._left_out = True
        return dict.fromkeys(gradients)

    def take_left_out(self) -> bool:
        """Has a stage left out an update since the last time?"""
        left_out, self._left_out = self._left_out, False
        return left_out

    def update(self, overflow: bool) -> None:
        """After an update, or instead of one. Raises FloatingPointError if no smaller scale is left to try."""
        if overflow and self.scale * self.backoff < _LEAST:
            raise FloatingPointError(f'gradients are not finite although the scale is down to {self.scale:.3g}: look '
                                     f'for inf or NaN in the inputs and the loss, or lower the learning rate')
        self._good = 0 if overflow else self._good + 1
        if overflow:
            self.scale *= self.backoff
        elif self._good == self.interval:
            self._good = 0
            if torch.tensor(self.scale * self.growth).isfinite():   # as a number of float32
                self.scale *= self.growth

    def state_dict(self) -> dict[str, Any]:
        return {'scale': self.scale, 'good': self._good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scale, self._good = _verified(state['scale']), state['good']

    def __repr__(self) -> str:
        return f'LossScale({self.scale}, {self.growth}, {self.backoff}, {self.interval})'


def _verified(scale: float) -> float:
    if not _LEAST <= scale <= _MOST:
        raise ValueError(f'a scale is at least {_LEAST:.3g} and at most {_MOST:.3g}, which float32 still holds, not '
                         f'{scale!r}: 2.0**16 is a usual one to begin with')
    return scale
