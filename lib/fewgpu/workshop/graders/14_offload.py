"""Grader of exercise 14. Laws: each layer is read when there is room, and nothing waits that need not; tiles add up."""

from random import Random

import torch

from fewgpu.workshop.graders import read_laws, tile_laws
from fewgpu.workshop.graders.reads import (Scene, least_backward, least_forward, run_backward, run_forward, scenes)
from fewgpu.workshop.graders.tiles import layers
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.work import Work

FORBIDDEN = 'fewgpu.ahead', 'fewgpu.offload', 'fewgpu.tiled'

MISCONCEPTIONS = {
    'all-at-once': 'all layers are read before the first one computes: that needs the memory of the whole model, which '
                   'is what there is not',
    'never-frees': 'layers stay in memory that are not needed any more: memory fills up, and the next one has no room',
    'one-too-many': 'there is one layer too many in memory: the one that computes and `ahead` more, and a layer counts '
                    'from its read to its free()',
    'no-room': 'a layer is read for which there is no room yet: free one first',
    'no-such-part': 'a read goes past the end: the last layers have none after them (in the backward, the first ones)',
    'no-wait': 'a layer computes with what is not there yet: read() returns a handle, and the weights come from wait()',
    'after-free': 'weights are used that have been freed: free() comes after the last use',
    'freed-twice': 'something is freed a second time, and by then the memory may belong to another',
    'freed-in-flight': 'something is freed while the disk still writes to it: wait for it first',
    'wrong-weights': 'a layer computes with the weights of another: a handle belongs to the layer that it was read for',
    'no-forward': 'a layer has a second backward, or one without a forward',
    'layer-order': 'the layers do not compute in their order: what one returns is what the next one needs',
    'left-out': 'a layer does not compute at all: the loop ends too early, or begins too late',
    'input-stays': 'every layer gets the input of the model: a layer needs what the one before has returned',
    'gradient-stays': 'every layer gets the gradient of the output: a layer needs what the one after it has returned',
    'nothing-left': 'layers are freed at the end of the forward that the backward needs first: it would have to read '
                    'them again',
    'freed-handles': 'the dict also has handles of layers that have been freed: whoever waits for these gets nothing',
    'other-handles': 'what is returned are not the handles of the layers that are in memory',
    'reads-again': 'a layer is read that is in memory already, or has been read before: reading is what takes the time',
    'forward-order': 'the backward reads the first layers first, but needs them last: it goes from the last to the '
                     'first',
    'no-overlap': 'the disk and the device take turns: no layer is on its way while another one computes (wait for a '
                  'layer when it is needed, not when its read begins)',
    'one-too-few': 'one layer less is in memory than there is room for: with `ahead` more than the one that computes, '
                   'the disk has work for longer',
    'one-ahead': 'only one layer is read ahead, however much room there is: a layer that takes long to read has to '
                 'begin earlier',
    'slow-start': 'the disk begins to read ahead when the first layer has been computed: the room is there from the '
                  'start',
    'in-groups': 'the layers go in groups, and the next group is read when all of the last one have been computed: '
                 'each layer that is done makes room for one more',
    'tiles-stay': 'tiles stay in memory: there is room for one, and a tile that has been used is not needed any more',
    'next-too-early': 'the next tile is read before the one in memory has been freed: there is room for one',
    'tiles-copied': 'the tiles are freed, but copies of them stay: what is in memory does not depend on its name',
    'tiles-again': 'every tile is read once, and no more often',
    'callers-tensor': 'the input or the gradient of the caller is changed',
    'bias-forgotten': 'the bias is left out: a tile has rows of W and the same rows of b',
    'bias-twice': 'the bias is added twice',
    'tiles-below': 'the outputs of the tiles are put one below the other: a tile gives columns of the output, for all '
                   'rows of x',
    'outputs-added': 'the outputs of the tiles are added: each tile gives columns of its own (only in the backward do '
                     'they add up, for x)',
    'last-tile': 'only the output of the last tile is returned: they belong side by side',
    'backwards': 'the outputs are put side by side from the last tile to the first',
    'not-transposed': 'x is multiplied with the tile as it is: the rows of a tile are outputs, so it is x W^T',
    'equal-tiles': 'all tiles are taken to have the same number of rows: look at how many this one has',
    'gradient-overwritten': 'the gradient of x is that of the last tile alone: every output depends on x, so the tiles '
                            'add up',
    'gradient-averaged': 'the gradient of x is divided by the number of tiles: it is a sum, as in the plain layer',
    'joined': 'what the tiles give to x is put together: each of them is as large as x, and they add up',
    'same-columns': 'every tile gets the first columns of the gradient: where the next one begins has to move on',
    'whole-gradient': 'a tile gets all columns of the gradient: only those of its own outputs belong to it',
    'rows-for-columns': 'rows of the gradient are cut out, and those belong to rows of x: a tile has columns',
    'bias-gradient': 'the bias is added to every row, so its gradient is the sum over the rows: one number for each '
                     'output',
    'weight-gradient-turned': 'the gradient of the weight is turned over: it has the shape of the weight, so it is '
                              'gradient.T @ x',
    'divided': 'the gradients of a tile are divided by a number: what is handed in is the gradient of the loss '
               'already, and all that is left to do is to add up',
    'all-tiles-added': 'what is written for a tile has the gradients of the tiles before in it: they add up for x only',
    'not-written': 'there are tiles whose gradients are never given back: they would not learn',
    'written-twice': 'the gradients of a tile are written twice: they are complete after one visit, for all rows of x '
                     'are there',
    'written-late': 'gradients are kept while the next tile is read: all of them together are as large as W, for which '
                    'there is no room',
}

HINTS = {
    'forward_laws': Hints(
        idea='Memory is a row of ahead + 1 places. When does one become free, and which layer may move in?',
        place='`forward`: before the loop fill all places; in the loop wait, compute, and then free and read, but only '
              'if there is a layer left to read.',
        outline='handles = a dict, with a read for each of the first ahead + 1 layers (or all)\n'
                'for each layer k: wait for it, compute\n'
                '    if there is a layer k + ahead + 1: free layer k, read that one\n'
                'return the output and the dict'),
    'forward_time': Hints(
        idea='read() returns at once, wait() does not. What does the disk do while you wait for a layer that you have '
             'only just asked for?',
        place='`forward`: as many reads as there is room for before the first wait; each wait right before its own '
              'layer computes.',
        outline='reads of layers 0 ... ahead\nfor each k: wait for k, compute k, free k, read k + ahead + 1'),
    'backward_laws': Hints(
        idea='Turn the picture of the forward round: which layers are there, which one is done first, and who moves '
             'in?',
        place='`backward`: no read before the loop. After layer k is done there is room for the one that is needed '
              'ahead + 1 layers later: k - ahead - 1.',
        outline='for k from the last layer to the first: wait for it, compute, free it\n'
                '    if k - ahead - 1 is a layer: read it\n'
                'return the gradient'),
    'backward_time': Hints(
        idea='When layer k has been computed its room is free. Is there any reason to leave the disk idle?',
        place='`backward`: the read right after the free, the wait as late as possible.',
        outline='compute k, free k, read k - ahead - 1; only then go on to wait for k - 1'),
    'tiles_forward': Hints(
        idea='Write out x W^T for two rows of W. Which column of the output does the first row give?',
        place='`tiled_forward`: a list of what the tiles give, put side by side at the end (torch.cat with dim=1).',
        outline='for each tile: read, wait\n    append x times the turned weight, plus the bias\n    free\n'
                'return all of them side by side'),
    'tiles_backward': Hints(
        idea='A tile has made some columns of the output. So which columns of the gradient concern it? And who else '
             'has used x?',
        place='`tiled_backward`: the first column of the tile, which moves on by its rows; a sum for x that begins '
              'with zeros.',
        outline='sum = zeros like x, start = 0\nfor each tile: read, wait\n'
                '    part = its columns of the gradient\n'
                '    add part times weight to the sum\n'
                '    write k, part turned times x, the sum of the rows of part\n'
                '    start moves on; free'),
}


@check('each layer is read once, memory is never too small, and the last layers stay for the backward', points=2)
def forward_laws(work: Work, random: Random) -> None:
    read_laws.check_forward(work, scenes(random))


@check('the forward ends as early as it can', points=2, after=['forward_laws'])
def forward_time(work: Work, random: Random) -> dict[str, str]:
    read_laws.check_time(work, 'forward', scenes(random))
    scene = Scene((2.0,) * 12, (2.0,) * 12, 1)
    return {'12 layers, one read ahead': f'{run_forward(work.forward, scene, 2).seconds:g} s; layer by layer '
            f'{least_forward(scene, 0):g} s. In memory are 2 of 12 layers'}


@check('the backward goes from the last layer to the first, and reads only what is not there', points=2)
def backward_laws(work: Work, random: Random) -> None:
    read_laws.check_backward(work, scenes(random))


@check('the backward ends as early as it can', points=1, after=['backward_laws'])
def backward_time(work: Work, random: Random) -> dict[str, str]:
    read_laws.check_time(work, 'backward', scenes(random))
    scene = Scene((4.0,) * 12, (2.0,) * 12, 1)
    return {'12 layers, one read ahead': f'{run_backward(work.backward, scene, 2).seconds:g} s; layer by layer '
            f'{least_backward(scene, 0):g} s'}


@check('a layer in tiles gives what the plain layer gives, with one tile in memory', points=1)
def tiles_forward(work: Work, random: Random) -> None:
    tile_laws.check_forward(work, layers(random))


@check('its backward gives x and every tile their gradients, tile by tile', points=2)
def tiles_backward(work: Work, random: Random) -> dict[str, str]:
    tile_laws.check_backward(work, layers(random))
    elements, largest = 4096 * 4096, 4096 * 4096 // 8
    size = torch.finfo(torch.float32).bits // 8
    return {'a layer of 4096 x 4096 in 8 tiles': f'{2 * largest * size / 2**20:g} MB for a tile and its gradient; '
                                                f'{2 * elements * size / 2**20:g} MB in one piece'}
