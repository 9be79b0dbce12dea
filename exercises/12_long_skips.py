"""Exercise 12: long skips over several GPUs, straight to where they are used (about 40 minutes).

A U-Net's first layer makes something that its last layer needs: a long skip. Spread the model over several GPUs, and
the skip has to get from one end to the other. If it flows along with the activations, every GPU between them
receives it, keeps it and sends it on, though none of them has any use for it. Better to send it straight; and better
still to place the layers so that it need not be sent at all.

A model is a list of layers. `saves` and `loads` tell of its skips, {name: number of a layer}:

    saves = {'a': 0, 'b': 1}     what layer 0 gives is kept as 'a', and what layer 1 gives as 'b'
    loads = {'a': 4, 'b': 3}     layer 4 takes 'a' and layer 3 takes 'b', beside what comes from the layer before

    layer 0 --+--> 1 --+--> 2 ------> 3 ------> 4
              |        +-----  b  ----^         ^
              +-----------  a  -----------------+

Every name is saved by one layer and loaded by one later one, which is not the very next. A layer saves one skip at
most and loads one at most; it may do both. What it saves also goes on to the next layer, as always.

    ./workshop.py check 12       # is it right?
    ./workshop.py run exercises/12_long_skips.py

You need no GPU: the kit pretends that there are some, as in exercise 04.
"""

from typing import Any

import torch
from torch import nn

from fewgpu.workshop.practice.gpus import pretend_gpus

Moves = list[tuple[str, int, int]]   # what is copied ('x' or the name of a skip), from which GPU, to which


def through(placement: list[int], saves: dict[str, int], loads: dict[str, int]) -> Moves:
    """What is copied in a forward if skips flow along with the activations. Layer k lives on GPU placement[k].

    Wherever a layer and the next one live on different GPUs, what the first one gives is copied to the other GPU:
    'x'. So is every skip that is under way there: saved by that layer or an earlier one, and loaded later. The order
    of the answer is free.

        through([0, 0, 1, 2], {'a': 0}, {'a': 3})  ->  [('x', 0, 1), ('a', 0, 1), ('x', 1, 2), ('a', 1, 2)]
    """
    # TODO STEP 1: go from layer to layer; where the GPU changes, what is under way?
    # END


def straight(placement: list[int], saves: dict[str, int], loads: dict[str, int]) -> Moves:
    """What is copied in a forward if every skip is copied once, from the GPU that saves it to the one that loads it.

    A skip whose two layers live on the same GPU is not copied at all. For x nothing changes. The order is free.

        straight([0, 0, 1, 2], {'a': 0}, {'a': 3})  ->  [('x', 0, 1), ('x', 1, 2), ('a', 0, 2)]
        straight([0, 1, 1, 0], {'a': 0}, {'a': 3})  ->  [('x', 0, 1), ('x', 1, 0)]
    """
    # TODO STEP 2: the moves of x, and at most one for each skip
    # END


def forward(layers: list[nn.Module], devices: list[torch.device], saves: dict[str, int], loads: dict[str, int],
            x: torch.Tensor) -> torch.Tensor:
    """The output of the model, on the GPU of its last layer. Layer k lives on devices[k], and stays there.

    A layer that loads a skip is called with two tensors, layer(x, skip), and every other one with one, layer(x); all
    are on the layer's device. `x` comes from the CPU. What is copied is what `straight` says, and x to the first GPU.
    When a skip is copied, at once or when it is loaded, is free.

    Gradients flow back through all layers and skips, as in the plain model. A skip that has been loaded is let go: when
    a layer computes, at most one of those that earlier layers have loaded may still be there (a variable of yours may
    hold on to the last one). Autograd may keep them all; but in a forward under torch.no_grad() nobody should.
    """
    # TODO STEP 3: layer after layer; what it may need, and what it may leave for a later one
    # END


def place(layers: int, gpus: int) -> list[int]:
    """The GPU of every layer, for a U-Net: so that no skip has to be copied.

    There is an even number of layers. The first half goes down, the second half comes up again, and layer k has a
    skip to its mirror image, layer layers - 1 - k: the first to the last, and so on. Such a pair shares a GPU, also
    the innermost one. All layers cost the same, and there are at least as many pairs as GPUs.

    - The two layers of every pair live on the same GPU.
    - The work is shared out: the pairs a GPU has differ by one at most.
    - x is copied as seldom as possible: a GPU has pairs that lie side by side.

    So x goes down over all GPUs and comes back. There are GPUs 0 to gpus - 1; which of them has the outermost pairs
    is free, and so is who has a pair more than another.

        place(8, 2)  ->  [0, 0, 1, 1, 1, 1, 0, 0]
        place(6, 2)  ->  [0, 0, 1, 1, 0, 0]  or  [0, 1, 1, 1, 1, 0]
    """
    # TODO STEP 4: the first half in as many equal parts as there are GPUs; and the second half?
    # END


class Up(nn.Module):
    """A layer that takes a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.cat([x, skip], dim=1)))


def told(moves: Any) -> str:
    return f'{len(moves or [])} moves, {sum(what != "x" for what, *_ in moves or [])} of them of skips'


if __name__ == '__main__':
    saves = {f'skip {k}': k for k in range(7)}
    loads = {f'skip {k}': 15 - k for k in range(7)}
    for name, placement in [('one after another', [k // 4 for k in range(16)]), ('yours', place(16, 4) or [0] * 16)]:
        print(f'layers placed {placement} ({name})')
        print('    through: ', told(through(placement, saves, loads)))
        print('    straight:', told(straight(placement, saves, loads)))
    with pretend_gpus(3) as gpus:
        devices = [gpus.devices[number] for number in (0, 0, 1, 2)]
        layers = [nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), Up(3)]
        for layer, device in zip(layers, devices):
            layer.to(device)
        gpus.forget()
        print('forward:', forward(layers, devices, {'a': 0}, {'a': 3}, torch.ones(2, 3)))
        print('copied:', *gpus.moves, sep='\n    ')
