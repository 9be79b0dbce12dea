"""A layer whose weights are no part of it: they come with every call, as one tensor of one dimension."""

import torch


class Dense:
    """tanh(x W): `inputs` numbers a row come in, and `outputs` numbers a row go out. W has `numbers` weights."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs, self.numbers = inputs, outputs, inputs * outputs

    def forward(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The output for some rows. No graph is made."""
        with torch.no_grad():
            return torch.tanh(x @ self._matrix(weights))

    def backward(self, weights: torch.Tensor, x: torch.Tensor,
                 gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From the gradient of the output: that of x, the input of the forward, and that of the weights, flat."""
        with torch.no_grad():
            matrix = self._matrix(weights)
            inner = gradient * (1 - torch.tanh(x @ matrix)**2)
            return inner @ matrix.T, (x.T @ inner).flatten()

    def _matrix(self, weights: torch.Tensor) -> torch.Tensor:
        if tuple(weights.shape) != (self.numbers,):
            raise ValueError(f'the layer has {self.numbers} weights, flat, and gets a tensor of shape '
                             f'{tuple(weights.shape)}')
        return weights.reshape(self.inputs, self.outputs)
