"""Exercise 04: a model that is spread over several GPUs (about 25 minutes).

A model that does not fit one GPU may fit two: the first layers live on one, the others on the next. A tensor and the
weights it meets have to be on one device, so the activations travel to the next stage, and their gradients travel
back; the weights stay. One GPU works at a time: it is no faster than one large GPU would be. The pipeline of the next
exercises mends that.

    ./workshop.py check 04       # is it right?
    ./workshop.py run exercises/04_model_parallel.py

You need no GPU: the kit pretends that there are some (`fewgpu.workshop.practice.gpus`). `.to`, `.cuda`, `.device`,
`device=` and CUDA's error messages are as you know them. `torch.cuda` itself does not know these GPUs: what you ask
it (`torch.cuda.device_count()`, say) is answered for the machine that you have.
"""

from collections.abc import Callable

import torch
from torch import nn

from fewgpu.workshop.practice.gpus import pretend_gpus


def place(model: nn.Sequential, balance: list[int], devices: list[torch.device]) -> list[nn.Sequential]:
    """Cut a model into stages and put each on its device; returns the stages.

    Stage j has the next balance[j] layers of the model and lives on devices[j], with all its parameters and buffers.
    There are as many devices as stages, and all layers find a place: sum(balance) is len(model). Every balance[j] is
    at least 1. Devices come in any order, and two stages may share one.

    The layers are the model's own, not copies: an optimizer that was made of model.parameters() trains them. They are
    moved, and stay as they are otherwise (dtype, requires_grad, training or eval mode). A stage can be called.

        place(nn.Sequential(a, b, c), [1, 2], [cuda0, cuda1])
            ->  [nn.Sequential(a), nn.Sequential(b, c)]       a on cuda0, b and c on cuda1
    """
    # STEP 1: take the layers stage by stage: each begins where the one before it has ended
    stages, start = [], 0
    for layers, device in zip(balance, devices):
        stages.append(model[start:start + layers].to(device))
        start += layers
    return stages
    # END


def forward(stages: list[nn.Sequential], devices: list[torch.device], x: torch.Tensor) -> torch.Tensor:
    """The output of the whole model for a mini-batch; stage j lives on devices[j], as `place` has left it.

    `x` may be on the CPU or on any GPU. The output is on the last stage's device, and stays there. Each activation
    is copied once, straight from the device of the stage that made it to that of the next one (not at all if that
    is the same). The weights do not move. Gradients flow back through all stages to the first.

    With a stage on cuda:0 and one on cuda:1, and 5 rows on the CPU, two tensors are copied: the 5 rows of x from the
    CPU to cuda:0, and the 5 rows that stage 0 has made of them from cuda:0 to cuda:1.
    """
    # STEP 2: stage after stage, each on its own device
    for stage, device in zip(stages, devices):
        x = stage(x.to(device))
    return x
    # END


def train_step(stages: list[nn.Sequential], devices: list[torch.device], x: torch.Tensor, target: torch.Tensor,
               loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
               optimizer: torch.optim.Optimizer) -> float:
    """One training step on a mini-batch, as a plain script does it; returns the loss, a number.

    `x` and `target` are on the CPU. loss_fn(output, target) is computed on the last stage's device, where the output
    is. The optimizer has all the model's parameters. Gradients that were there before the step do not count. The loss
    that is returned is that of this forward, and holds no graph.

        for x, target in batches:
            loss = train_step(stages, devices, x, target, nn.functional.mse_loss, optimizer)
    """
    # STEP 3: the five lines of every training loop; what has to be where?
    optimizer.zero_grad()
    output = forward(stages, devices, x)
    loss = loss_fn(output, target.to(output.device))
    loss.backward()
    optimizer.step()
    return loss.item()
    # END


if __name__ == '__main__':
    with pretend_gpus(2) as gpus:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, target = torch.randn(5, 3), torch.randn(5, 2)
        print('stages:', stages := place(model, [1, 2], gpus.devices))
        gpus.forget()
        if stages:
            print('output:', forward(stages, gpus.devices, x))
            print('losses:', [train_step(stages, gpus.devices, x, target, nn.functional.mse_loss, optimizer)
                              for _ in range(3)])
        print('copied:', *gpus.moves, sep='\n    ')
