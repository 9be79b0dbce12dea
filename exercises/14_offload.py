"""Exercise 14: weights from a disk, layer by layer and tile by tile (about 35 minutes).

A model may be larger than the memory of the device. ZeRO-Infinity keeps its weights on a disk and reads each layer
when it is needed. Reading takes time, but the device need not wait for it: while it computes one layer, the disk
reads the next ones. And where a single layer is too large, it is read in tiles, and no tile needs the others.

    ./workshop.py check 14       # is it right?
    ./workshop.py run exercises/14_offload.py
"""

import torch

from fewgpu.workshop.practice.disk import Disk, Handle, Machine


def forward(machine: Machine, x: torch.Tensor, ahead: int) -> tuple[torch.Tensor, dict[int, Handle]]:
    """The forward of all layers, while the disk reads ahead. Returns the output and what is still in memory.

    The machine has machine.count layers, 0, 1, ..., at least one. All time is virtual: what you call takes it.

        handle = machine.read(k)           starts to read the weights of layer k and returns at once. The disk reads
                                           one layer after the other, in the order in which you have asked for them.
        weights = handle.wait()            waits until they have been read, and returns them.
        y = machine.forward(k, weights, x) computes layer k; meanwhile the disk goes on reading.
        handle.free()                      gives the memory of the layer back; its weights are lost.

    Laws:

    - From its read to its free() a layer is in memory, and there is room for ahead + 1 layers: the one that computes
      and `ahead` more (0, 1, 2, ...). Where there is room, a layer is on its way, as long as one is left to read.
    - Every layer is read once.
    - When you return, the last ahead + 1 layers (or all, if there are no more) are still in memory, for the backward
      begins with them. You return their handles in a dict, by the number of the layer.
    - No other order of reads, waits and frees ends earlier.

    Three layers, ahead = 1; it takes 2 s to read a layer and 3 s to compute it. Each character is a second: the number
    of the layer, or a dot for nothing.

        disk    0011.22....        Layer 2 is read as soon as layer 0 has been freed. 11 s in all; layer by layer,
        device  ..000111222        with nothing read ahead, it would be 15 s. Returns y, {1: handle, 2: handle}.
    """
    # TODO STEP 1: fill the memory with reads; each layer that is done makes room for one more
    # END


def backward(machine: Machine, gradient: torch.Tensor, handles: dict[int, Handle], ahead: int) -> torch.Tensor:
    """The backward of all layers, from the last to the first. Returns the gradient of the model's input.

        gradient = machine.backward(k, weights, gradient)

    computes the backward of layer k: it takes the gradient of the layer's output and returns that of its input. (The
    machine has kept what it needs of the forward, and writes the gradient of the weights to the disk.)

    `handles` is what `forward` has returned: the last ahead + 1 layers are in memory already. They are not read
    again; every other layer is read once more. The room is the same, and again no other order may end earlier. When
    you return, no layer is in memory any more. (The dict is yours to change.)

    As above; a backward takes 6 s. Layer 0 is read once layer 2 has been freed. 18 s in all:

        disk    ......00..........
        device  222222111111000000
    """
    # TODO STEP 2: the same the other way round, but the first layers that you need are there
    # END


def tiled_forward(disk: Disk, x: torch.Tensor) -> torch.Tensor:
    """The output of one linear layer, x W^T + b, of which memory holds only one tile.

    A tile is some rows of W and the same rows of b. The disk has disk.count tiles; tile 0 has the first rows, tile 1
    the next ones, and so on. They may have different numbers of rows.

        handle = disk.read(k)              as above
        weight, bias = handle.wait()       weight: rows of the tile x inputs; bias: rows of the tile
        handle.free()                      there is room for one tile, so free it before you read the next one

    x: rows of x x inputs, float64. Returns: rows of x x rows of W.

        tile 0: weight [[1, 0]], bias [5]      tile 1: weight [[0, 1], [1, 1]], bias [0, 0]
        tiled_forward(disk, tensor([[2, 3]]))  ->  tensor([[7, 3, 5]])
    """
    # TODO STEP 3: which part of the output does a tile give?
    # END


def tiled_backward(disk: Disk, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The backward of `tiled_forward`: from the gradient of its output to those of x and of every tile.

    `gradient` is as large as the output. (The plain layer would give x the gradient `gradient @ W`, W the gradient
    `gradient.T @ x`, and b the sum of the rows of `gradient`.) Again memory has room for one tile. Give the gradients
    of a tile back before you read the next tile, for they are as large as the tile:

        disk.write(k, gradient of the weight of tile k, gradient of its bias)     once for each tile

    Returns the gradient of x. With x and the tiles of the example above:

        tiled_backward(disk, tensor([[2, 3]]), tensor([[1, 10, 100]]))  ->  tensor([[101, 110]])
        written: tile 0: [[2, 3]], [1]; tile 1: [[20, 30], [200, 300]], [10, 100]
    """
    # TODO STEP 4: which columns of `gradient` belong to a tile, and what do all tiles do to x?
    # END


if __name__ == '__main__':
    one = torch.ones(1, 1, dtype=torch.float64)
    machine = Machine([one, 2 * one, 3 * one], reads=[2, 2, 2], computes=[3, 3, 3], room=2)
    y, handles = forward(machine, one, ahead=1) or (None, {})
    print('forward: three layers, one of them is read ahead')
    print(machine.picture(), '\nin memory: layers', [*handles])
    if backward(machine, one, handles, ahead=1) is not None:
        print('forward and backward')
        print(machine.picture(), '\nin memory:', len(machine.held), 'layers')
    disk = Disk([(torch.tensor([[1.0, 0.0]]), torch.tensor([5.0])),
                 (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([0.0, 0.0]))], room=1)
    x = torch.tensor([[2.0, 3.0]])
    print('tiled_forward ', tiled_forward(disk, x))
    print('tiled_backward', tiled_backward(disk, x, torch.tensor([[1.0, 10.0, 100.0]])), 'written', disk.written)
