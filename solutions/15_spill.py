"""Exercise 15: models larger than the device, shard by shard, and several at once (about 35 minutes).

Hydra trains models that do not fit on a device: the weights stay in the memory of the host, and one part of the
model, a shard, at a time comes to the device, does its forward or backward there, and leaves. As shards of one model
have to wait for each other, several models share the devices. That is common: who looks for good hyperparameters
trains many.

    ./workshop.py check 15       # is it right?
    ./workshop.py run exercises/15_spill.py
"""

from collections.abc import Callable, Collection

import torch
from torch import nn

from fewgpu.workshop.practice.gpus import pretend_gpus


def cut(weights: list[int], working: list[int], memory: int, buffer: int) -> list[int]:
    """How many layers each shard gets: the fewest shards that fit.

    Layer i has weights[i] bytes of weights, and its forward and backward need working[i] bytes more. The layers stay
    in their order: a shard is a run of neighbours. The device has `memory` bytes. `buffer` of them are kept for the
    weights of the shard that comes next, which are copied there while this one computes:

        memory   |  weights and working bytes of all layers of a shard  |  buffer: weights of the next one  |

    So of every shard, whichever it is, the weights together are at most `buffer`, and weights and working bytes
    together are at most memory - buffer. Where several cuts have the fewest shards, any of them will do. Raises
    ValueError if a layer does not even fit alone. There is at least one layer.

        cut([2, 2, 1, 3], [1, 1, 1, 1], memory=10, buffer=4)  ->  [2, 2]     6 of 6 bytes and 4 of 4, both times
        cut([2, 2, 1, 3], [1, 1, 1, 1], memory=10, buffer=3)  ->  [1, 2, 1]  2 + 2 bytes do not fit into the buffer
        cut([2, 2, 1, 3], [1, 1, 1, 1], memory=10, buffer=2)  ->  ValueError
    """
    # STEP 1: a layer joins the shard before it if there is room, and else begins a new one
    shards, stored, used = [], 0, 0
    for weight, work in zip(weights, working):
        if weight > buffer or weight + work > memory - buffer:
            raise ValueError(f'a layer of {weight} + {work} bytes does not fit')
        if not shards or stored + weight > buffer or used + weight + work > memory - buffer:
            shards.append(0)
            stored = used = 0
        shards[-1] += 1
        stored += weight
        used += weight + work
    return shards
    # END


def train_step(shards: list[nn.Module], x: torch.Tensor, target: torch.Tensor,
               loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], device: torch.device) -> float:
    """The gradients of one batch, with one shard at a time on the device. Returns the loss, a number.

    The model is shards[0], then shards[1], and so on; there is at least one. All shards, x (of floats) and target are
    in the memory of the host. `shard.to(device)` brings the weights of a shard to the device (and gradients that it has
    already), `shard.to('cpu')` brings them back to the host; a tensor goes by `.to`, too, but returns a copy.

    Laws:

    - Shards run on the device, and only one shard is there at a time.
    - A forward keeps the input of each shard, in the host's memory, and nothing else. So it runs without a graph;
      when the backward of a shard comes, its forward runs again from the input that was kept, now with a graph.
    - The last shard needs no second forward: its backward comes right after its forward, while it is there. So each
      shard is brought to the device twice, but the last one once.
    - Afterwards all parameters are on the host, and their .grad have got the gradients of loss_fn(output, target), as
      from the plain model's backward: added to what was there before. No weights are changed, and x and target are as
      they were.

    No layer draws random numbers or changes its input. For three shards the device sees:

        forward 0, forward 1, forward 2 with loss and backward, forward and backward 1, forward and backward 0
    """
    # STEP 2: forwards up to the last shard; then from the last to the first: forward with a graph, and backward
    inputs = [x]
    for shard in shards[:-1]:
        shard.to(device)
        with torch.no_grad():
            inputs.append(shard(inputs[-1].to(device)).to('cpu'))
        shard.to('cpu')
    gradient = loss = None
    for shard in reversed(shards):
        shard.to(device)
        kept = inputs.pop().to(device).detach().requires_grad_()
        y = shard(kept)
        if gradient is None:
            loss = loss_fn(y, target.to(device))
            loss.backward()
        else:
            y.backward(gradient)
        gradient = kept.grad
        shard.to('cpu')
    return loss.item()
    # END


def next_model(units: list[list[float]], done: list[int], busy: Collection[int]) -> int | None:
    """Which model a device that is free works on next: the one that has the longest time left. (Sharded-LRTF.)

    units[m] are the seconds of all that model m has to do, in order: the visits of its shards to a device. The first
    done[m] of them have ended. `busy` has the numbers of the models that a device works on now: a model is on one
    device at a time, for each unit needs the one before.

    Returns the number of the model whose units that have not ended take longest together, of all that are not busy
    and not at their end; the smallest such number if several take equally long. None if there is no such model.

        next_model([[4, 4], [1, 1, 1], [2, 3, 2]], done=[1, 0, 0], busy=[])      ->  2       4, 3 and 7 s are left
        next_model([[4, 4], [1, 1, 1], [2, 3, 2]], done=[1, 0, 0], busy=[2])     ->  0
        next_model([[4, 4], [1, 1, 1], [2, 3, 2]], done=[2, 3, 1], busy=[2])     ->  None
    """
    # STEP 3: what is left of each model, and which of them may run
    left = {m: sum(seconds[done[m]:]) for m, seconds in enumerate(units) if m not in busy and done[m] < len(seconds)}
    return max(left, key=left.get, default=None)
    # END


if __name__ == '__main__':
    print('cut       ', cut([2, 2, 1, 3], [1, 1, 1, 1], memory=10, buffer=4))
    shards = [nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)]
    x, target = torch.ones(2, 4), torch.zeros(2, 4)
    with pretend_gpus(1) as gpus:
        print('train_step', train_step(shards, x, target, nn.functional.mse_loss, torch.device('cuda', 0)))
        print('\n'.join(f'    {move}' for move in gpus.moves))
    print('next_model', next_model([[4, 4], [1, 1, 1], [2, 3, 2]], done=[1, 0, 0], busy=[]))
