"""Exercise 06: what a stage does with a micro-batch, and a step of the pipeline (about 40 minutes).

In a pipeline every stage has a graph of its own for each micro-batch. What crosses from one stage to the next is a
bare tensor, and what comes back is the gradient of the loss with respect to it. So the stages may be anywhere: in
other threads, on other GPUs, in other processes. And they may work on several micro-batches, in any order.

    ./workshop.py check 06       # is it right?
    ./workshop.py run exercises/06_pipeline_step.py
"""

from collections.abc import Callable

import torch
from torch import nn


class Stage:
    """Some layers of a model, and what they have to remember of the micro-batches that are on their way."""

    def __init__(self, module: nn.Module) -> None:
        """`module` has the stage's layers; none of them changes its input in place."""
        # STEP 1: keep the layers; and what will be kept of several micro-batches at a time, by their numbers
        self.module = module
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # END

    def forward(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """The output of the layers for micro-batch i, as a tensor without a graph (its grad_fn is None).

        `x` has no graph and does not require a gradient. It is what the previous stage has sent, a float tensor, or
        in the first stage the input of the model, which may be integers (token numbers, say). It stays the caller's:
        leave it as it is, and also what it says of itself (`x.requires_grad`). The layers run once for each
        micro-batch: dropout draws in them, and batch norm counts.

        Keep what `backward(i, ...)` will need. Before it is called, forwards of other micro-batches may come, in any
        order. A number that has had its backward is used again in the next step.
        """
        # STEP 2: a graph that ends at the borders of this stage: where does it begin, and what leaves the stage?
        x = x.detach()
        if x.is_floating_point():
            x.requires_grad_()
        y = self.module(x)
        self._kept[i] = x, y
        return y.detach()
        # END

    def backward(self, i: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """The backward of micro-batch i, from the gradient of the loss with respect to the stage's output.

        Adds to the `.grad` of the parameters, as every backward of torch does. Returns the gradient of the loss with
        respect to x, for the previous stage; None if x were integers. Afterwards the stage keeps nothing of
        micro-batch i. The backwards of several micro-batches come in any order.

            stage = Stage(nn.Linear(1, 1, bias=False))            its weight is 3, say
            stage.forward(0, torch.tensor([[2.]]))         ->     tensor([[6.]])
            stage.backward(0, torch.tensor([[10.]]))       ->     tensor([[30.]])     and the weight's .grad is 20
        """
        # STEP 3: go on from the gradient that is handed in; what is handed on, and what may be forgotten now?
        x, y = self._kept.pop(i)
        y.backward(gradient)
        return x.grad
        # END


def step(stages: list[Stage], micro_batches: list[torch.Tensor], targets: list[torch.Tensor],
         loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
    """The gradients of a mini-batch, by a pipeline in GPipe's order; returns the mini-batch's mean loss, a number.

    First all forwards: every micro-batch goes through all stages, from the first to the last. Then all backwards:
    every micro-batch goes back through all stages, from the last to the first; which micro-batch is first is free.

    loss_fn(output, target) is the mean over the rows of a micro-batch, and micro-batches may have different numbers
    of rows (at least 1). Afterwards the parameters' gradients are those of the mean over all rows of the mini-batch,
    as if the plain model had done it in one piece, added to those that were there before. No weights are changed.
    A stage is used by its `forward` and `backward` alone. What is returned holds no graph.

        step([Stage(nn.Identity())], [torch.tensor([[1.], [1.]]), torch.tensor([[4.]])],
             [torch.zeros(2, 1), torch.zeros(1, 1)], lambda output, target: output.mean())
            ->  2.0      since (1 + 1 + 4) / 3 = 2; the stage's backwards get [[1/3], [1/3]] and [[1/3]]
    """
    # STEP 4: forwards, then the loss and the backwards; how much does the loss of a micro-batch count?
    outputs = []
    for i, x in enumerate(micro_batches):
        for stage in stages:
            x = stage.forward(i, x)
        outputs.append(x)
    rows, total = sum(map(len, targets)), 0.0
    for i in reversed(range(len(outputs))):
        output = outputs[i].requires_grad_()
        loss = loss_fn(output, targets[i]) * len(targets[i]) / rows
        loss.backward()
        total += loss.item()
        gradient = output.grad
        for stage in reversed(stages):
            gradient = stage.backward(i, gradient)
    return total
    # END


if __name__ == '__main__':
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 3.0)
    stage = Stage(layer)
    print('forward ', stage.forward(0, torch.tensor([[2.0]])))
    print('backward', stage.backward(0, torch.tensor([[10.0]])), 'weight', layer.weight.grad)
    print('step    ', step([Stage(nn.Identity())], [torch.tensor([[1.0], [1.0]]), torch.tensor([[4.0]])],
                           [torch.zeros(2, 1), torch.zeros(1, 1)], lambda output, target: output.mean()))
