"""Exercise 13: ZeRO: every rank keeps a piece of what all of them need (about 40 minutes).

In data parallelism every rank holds the same weights, the same averaged gradients and the same optimizer state: with
Adam in mixed precision, 16 bytes for every parameter. But a rank can train one piece of the weights for all others,
and then it needs the optimizer's state of this piece only. ZeRO shares out the state (stage 1), then the gradients
too (stage 2), then the weights themselves (stage 3).

Your functions run on all ranks at once. They get their `rank`, and N is how many there are:

    rank.rank, rank.size           my number, 0 to N - 1, and N
    rank.reduce_scatter(tensor)    my piece of the sum over all ranks: of N equal pieces, the one with my number
    rank.all_gather(piece)         the pieces of all ranks, in the order of the ranks, as one tensor
    rank.all_reduce(tensor)        the sum over all ranks, whole

They take tensors of one dimension and return new ones. The tensor that reduce_scatter or all_reduce gets is cut into N
equal pieces, so its length has to be a multiple of N. All ranks call the same ones in the same order. A reduce-scatter
of S bytes sends (N - 1) / N S bytes from each rank, and so does an all-gather to S bytes. An all-reduce is a
reduce-scatter and then an all-gather, and sends twice as much.

    ./workshop.py check 13       # is it right?
    ./workshop.py run exercises/13_zero.py
"""

from collections.abc import Callable
from typing import Any

import torch

from fewgpu.workshop.practice.collectives import Rank, run_ranks
from fewgpu.workshop.practice.dense import Dense


def bytes_a_rank(stage: int, parameters: int, ranks: int) -> float:
    """The bytes that each of the `ranks` holds for the training of so many parameters. Activations do not count.

    Adam in mixed precision has, for every parameter: the weight in half precision, which the layers compute with
    (2 bytes), its gradient in half precision (2 bytes), and the optimizer's state in single precision: a copy of the
    weight, a mean of gradients and a mean of their squares (4 bytes each).

    What is shared out is held by every rank in 1 / ranks of its size, all else whole. Stage 0 shares out nothing,
    stage 1 the optimizer's state, stage 2 the gradients as well, and stage 3 the weights as well.

        bytes_a_rank(0, 100, 4)  ->  1600
        bytes_a_rank(1, 100, 4)  ->  700       400 whole, 1200 / 4 of the state
    """
    # STEP 1: what is whole in this stage, and what is shared out?
    weights, gradients, state = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        state /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + state
    # END


def padded(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """The tensor, of one dimension, with as few zeros at its end as make it divisible: `ranks` equal pieces.

    This one is finished; use it where you need it.

        padded(tensor([1., 2., 3.]), 2)  ->  tensor([1., 2., 3., 0.])
    """
    return torch.cat([tensor, tensor.new_zeros(-len(tensor) % ranks)])


class Sharded:
    """ZeRO, stage 2: the weights are whole on every rank, and each trains its own piece of them."""

    def __init__(self, weights: torch.Tensor, make_optimizer: Callable[[list[torch.Tensor]], Any],
                 rank: Rank) -> None:
        """`weights`: those of the whole model, in one dimension; the same numbers on all ranks.

        Of the padded weights, cut into N equal pieces, rank r trains piece r. make_optimizer([tensor]) returns an
        optimizer of torch for a tensor (Adam, say): it holds state for every number of that tensor, and its
        `.step()` changes the tensor in place, by the tensor's `.grad`.

        With weights [1., 2., 3.] on 2 ranks, rank 0 trains [1., 2.], and rank 1 trains [3., 0.].
        """
        # STEP 2: cut out this rank's piece, and make the one optimizer that this rank needs
        self.weights, self.rank = weights, rank
        self.piece = padded(weights, rank.size).chunk(rank.size)[rank.rank].clone()
        self.optimizer = make_optimizer([self.piece])
        # END

    def step(self, gradient: torch.Tensor) -> None:
        """One training step. `gradient` is this rank's own, as long as the weights, from its own rows.

        All ranks have as many rows: what counts is the mean of the gradients over all ranks. Afterwards the tensor
        `weights` that __init__ has got holds (changed in place) what the optimizer would have made of all weights
        with the mean gradient: the same on all ranks. `step` is called again and again.

        It sends no more than an all-reduce of the padded gradient would, 2 (N - 1) / N times its bytes. All that the
        optimizers of a rank hold is state for its own piece.

            weights [1., 2., 3.], plain SGD with a learning rate of 1
            rank 0: step(tensor([1., 0., 0.]))     ->  weights [0., 2., 0.] on both ranks:
            rank 1: step(tensor([1., 0., 6.]))         the mean gradient is [1., 0., 3.]
        """
        # STEP 3: my piece of the mean gradient, my piece of the new weights, and then the weights of all
        self.piece.grad = self.rank.reduce_scatter(padded(gradient, self.rank.size)) / self.rank.size
        self.optimizer.step()
        self.weights.copy_(self.rank.all_gather(self.piece)[:len(self.weights)])
        # END


def forward(layers: list[Dense], pieces: list[torch.Tensor], x: torch.Tensor,
            rank: Rank) -> tuple[torch.Tensor, Any]:
    """ZeRO, stage 3: the output of a model whose weights are shared out, for this rank's own rows; and what to keep.

    pieces[k] is this rank's piece of the padded weights of layers[k]: none of the ranks has the others'. A layer has
    no weights of its own. It is called with them, and they are flat and without padding, layer.numbers long:

        layer.forward(weights, x)                ->  its output
        layer.backward(weights, x, gradient)     ->  the gradient of x, the gradient of the weights

    where x is what the layer has got in its forward and `gradient` is that of its output.

    Bring the weights of a layer together just before it computes. When a layer computes, the weights of no other
    layer are whole on this rank: what has been gathered has to be let go. `pieces` stay as they are. `forward`
    returns the output and, in whatever form you like, what your `backward` will need; no whole weights among it.

        layers [Dense(1, 3)] on 2 ranks have 3 weights, w0, w1, w2
        rank 0: forward(layers, [tensor([w0, w1])], x, rank)
        rank 1: forward(layers, [tensor([w2, 0.])], x, rank)     both call layers[0].forward(tensor([w0, w1, w2]), x)
    """
    # STEP 4: layer by layer: gather, compute, and keep what the layer's backward needs beside the weights
    inputs = []
    for layer, piece in zip(layers, pieces):
        inputs.append(x)
        x = layer.forward(rank.all_gather(piece)[:layer.numbers], x)
    return x, inputs
    # END


def backward(layers: list[Dense], pieces: list[torch.Tensor], kept: Any, gradient: torch.Tensor,
             rank: Rank) -> list[torch.Tensor]:
    """This rank's pieces of the mean gradients: for each layer one, in the order of the layers, as long as pieces[k].

    `kept` is what `forward` has returned beside the output, and `gradient` is that of this rank's output. What counts
    is, as above, the mean over all ranks. `pieces` stay as they are, and no other layer is whole when one computes.
    The gradient of the weights of layer k is shared out before the backward of layer k - 2 begins, at the latest: no
    rank collects those of all layers.

    With S for the bytes of all padded weights, `forward` sends (N - 1) / N S from each rank, and `backward` twice as
    much.
    """
    # STEP 5: layer by layer, from the last to the first: gather again, compute, and share the gradient out
    shared = []
    for layer, piece, x in reversed(list(zip(layers, pieces, kept))):
        gradient, own = layer.backward(rank.all_gather(piece)[:layer.numbers], x, gradient)
        shared.insert(0, rank.reduce_scatter(padded(own, rank.size)) / rank.size)
    return shared
    # END


def try_step(gradient: list[float], rank: Rank) -> torch.Tensor:
    """The example of `step`."""
    weights = torch.tensor([1.0, 2.0, 3.0])
    Sharded(weights, lambda tensors: torch.optim.SGD(tensors, lr=1.0), rank).step(torch.tensor(gradient))
    return weights


def try_layers(x: torch.Tensor, rank: Rank) -> Any:
    """A layer of 3 weights, 0.1, 0.2 and 0.3, forward and backward."""
    layers, pieces = [Dense(1, 3)], [[torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.0])][rank.rank]]
    output, kept = forward(layers, pieces, x, rank) or (None, None)
    return output, backward(layers, pieces, kept, torch.ones(1, 3), rank)


if __name__ == '__main__':
    print('GB a rank, 7.5 billion parameters, 64 ranks:',
          *(f'stage {stage}: {(bytes_a_rank(stage, 7_500_000_000, 64) or 0) / 1e9:.1f}' for stage in range(4)))
    print('step', *run_ranks(try_step, [[1.0, 0.0, 0.0], [1.0, 0.0, 6.0]]).results, sep='\n    ')
    print('forward and backward', *run_ranks(try_layers, [torch.tensor([[1.0]]), torch.tensor([[2.0]])]).results,
          sep='\n    ')
