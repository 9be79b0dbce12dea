"""Exercise 07: forward without a graph, and the same forward again for the backward (about 35 minutes).

The graph of a forward holds every activation until the backward: that is what fills a GPU. So keep the input of the
layer alone, and when the gradient comes, run the forward again, this time with a graph that lives for a moment only.
It costs one more forward, and the results must not show it: the second forward has to do exactly what the first one
did. (torch has all this ready in `torch.utils.checkpoint`. Here you write it, so that is not allowed.)

    ./workshop.py check 07       # is it right?
    ./workshop.py run exercises/07_recompute.py
"""

from typing import Any

import torch
from torch import nn


def forward(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The output `y` of `layer(x)`, without a graph, and whatever `backward` will need.

    `layer` is any module: one layer, or a whole stage. `x` comes without a graph. It may hold integers (then `layer`
    begins with an embedding). From now on `x` is yours alone, but a layer may work in place: `nn.SiLU(inplace=True)`
    writes its output over its input. Keep x itself or a copy, as long as what you keep is as it came. `y` has the
    caller's numbers: those that `layer(x)` would have had, with the same random numbers, and torch's generator is
    afterwards where `layer(x)` would have left it. `torch.is_grad_enabled()` says the same as before.

    What is kept, in `kept` or anywhere else, holds the bytes of `x` once, and small things: the state of the
    generator, copies of the layer's buffers. Not `y`, and nothing in between. `kept` may be of any type.

        layer = nn.Linear(1, 1) with weight 2 and bias 0
        y, kept = forward(layer, tensor([[3.]]))      y  ->  tensor([[6.]])      y.requires_grad  ->  False
    """
    # TODO STEP 1: no graph, but all that is needed to run the same forward again
    # END


def backward(layer: nn.Module, kept: Any, gradient: torch.Tensor) -> torch.Tensor | None:
    """The gradient for `x`, given the one for `y`; None if `x` holds integers, which have no gradient.

    The forward runs again, with a graph. Gradients of the parameters are added to what their `.grad` holds (None at
    first, and for ever for a parameter that is frozen: requires_grad=False). It is called once for each `kept`, in
    any order: two forwards may come before the first backward, and other random numbers may be drawn in between.

    The second forward is the first one's double: dropout has the same masks (`torch.get_rng_state()` and
    `torch.set_rng_state(state)` read and set the state of torch's generator). And it leaves no trace: the generator
    is afterwards where it was before `backward`, and the buffers of the layer (the running statistics of batch norm,
    and how many batches it has counted) are what they were, for the first forward has counted this batch. Batch norm
    is not the only layer that may have buffers. Whether a layer is in training or in eval mode does not change from
    the first forward to the second, and not by them.

        backward(layer, kept, tensor([[10.]]))  ->  tensor([[20.]])      layer.weight.grad  ->  tensor([[30.]])
    """
    # TODO STEP 2: the forward again, with a graph, and the backward through it;
    #         what has to be as it was in the forward, and what has to be put back afterwards?
    # END


if __name__ == '__main__':
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 2.0)
    nn.init.zeros_(layer.bias)
    y, kept = forward(layer, torch.tensor([[3.0]])) or (None, None)
    print('y            ', y)
    print('gradient of x', backward(layer, kept, torch.tensor([[10.0]])))
    print('of the weight', layer.weight.grad)
