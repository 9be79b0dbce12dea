"""Deferred batch norm: running statistics of the mini-batch, although micro-batches pass by.

In training, batch norm normalises every micro-batch by its own mean and variance (GPipe,
arXiv 1811.06965, section 2.2). The running statistics for evaluation would be updated once a
micro-batch, with momentum applied as many times. A deferred layer collects count, mean and sum of
squared deviations over the micro-batches and updates once, as one forward over the whole
mini-batch would.
"""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fewgpu.recompute import is_recomputing


class DeferredBatchNorm(_BatchNorm):
    """A batch norm layer that updates its running statistics once in `chunks` forwards."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, chunks: int = 1) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats=True)
        self.begin(chunks)

    def begin(self, chunks: int) -> None:
        """Forget what was collected; the statistics are updated after `chunks` more forwards."""
        self.chunks = chunks
        self._seen = 0
        self._count = 0
        self._mean: torch.Tensor | None = None      # over the micro-batches seen so far
        self._squares: torch.Tensor | None = None   # sum of squared deviations from that mean

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f'batch norm expects at least 2 dimensions (rows, features, ...), '
                             f'got {input.dim()}')

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows x features x anything; normalised over all but the features."""
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        if not is_recomputing():
            self._collect(input.detach())
        return nn.functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0,
                                        self.eps)

    @torch.no_grad()
    def _collect(self, input: torch.Tensor) -> None:
        # Chan, Golub and LeVeque's update of (count, mean, squares): no large sums that cancel.
        dims = [d for d in range(input.dim()) if d != 1]
        count = input.numel() // input.size(1)
        variance, mean = torch.var_mean(input.to(self.running_mean.dtype), dims, correction=0)
        if self._mean is None:
            self._count, self._mean, self._squares = count, mean, variance * count
        else:
            total = self._count + count
            shift = mean - self._mean
            self._mean = self._mean + shift * (count / total)
            self._squares = (self._squares + variance * count
                             + shift * shift * (self._count * count / total))
            self._count = total
        self._seen += 1
        if self._seen == self.chunks:
            self._update()

    def _update(self) -> None:
        self.num_batches_tracked += 1
        momentum = (1.0 / float(self.num_batches_tracked) if self.momentum is None
                    else self.momentum)
        unbiased = self._squares / max(self._count - 1, 1)
        self.running_mean.lerp_(self._mean, momentum)
        self.running_var.lerp_(unbiased, momentum)
        self.begin(self.chunks)

    @classmethod
    def convert_deferred_batch_norm(cls, module: nn.Module, chunks: int = 1) -> nn.Module:
        """The module with every batch norm that tracks statistics replaced by a deferred one.

        The new layers share parameters and buffers with the old ones; `module` is changed in
        place, and returned (a new layer if it is itself a batch norm).
        """
        if isinstance(module, DeferredBatchNorm):
            module.begin(chunks)
            return module
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm) \
                and module.track_running_stats:
            return cls._from(module, chunks)
        converted: dict[nn.Module, nn.Module] = {}   # a layer may be in several places
        for part in list(module.modules()):
            for name, child in part._modules.items():
                if isinstance(child, _BatchNorm):
                    if child not in converted:
                        converted[child] = cls.convert_deferred_batch_norm(child, chunks)
                    part._modules[name] = converted[child]
        return module

    @classmethod
    def _from(cls, layer: _BatchNorm, chunks: int) -> 'DeferredBatchNorm':
        deferred = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, chunks)
        deferred._parameters, deferred._buffers = layer._parameters, layer._buffers
        return deferred.train(layer.training)
