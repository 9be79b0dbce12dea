from collections import deque
from itertools import islice

import torch


class Ahead:
    """Weights of layers in some order, read while others compute; at most `room` in memory."""

    def __init__(self, machine, order, room, there=()):
        self.machine, self.room, self.order = machine, room, iter(order)
        self.held = deque(there)
        self.fill()

    def fill(self):
        for k in islice(self.order, self.room - len(self.held)):
            self.held.append((k, self.machine.read(k)))

    def drop(self):
        self.held.popleft()[1].free()
        self.fill()


def forward(machine, x, ahead):
    reader, last = Ahead(machine, range(machine.count), ahead + 1), machine.count - ahead - 1
    k = 0
    while k < machine.count:
        position = 0 if k < last else k - reader.held[0][0]
        x = machine.forward(k, reader.held[position][1].wait(), x)
        if k < last:
            reader.drop()
        k += 1
    return x, dict(reader.held)


def backward(machine, gradient, handles, ahead):
    there = sorted(handles.items(), reverse=True)
    reader = Ahead(machine, range(min(handles) - 1, -1, -1), ahead + 1, there)
    while reader.held:
        k, handle = reader.held[0]
        gradient = machine.backward(k, handle.wait(), gradient)
        reader.drop()
    return gradient


def visit(disk):
    end = 0
    for k in range(disk.count):
        handle = disk.read(k)
        weight, bias = handle.wait()
        begin, end = end, end + len(bias)
        yield k, weight, bias, slice(begin, end)
        handle.free()


def tiled_forward(disk, x):
    return torch.concat([torch.addmm(bias, x, weight.t()) for _, weight, bias, _ in visit(disk)], dim=-1)


def tiled_backward(disk, x, gradient):
    of_x = 0
    for k, weight, _, columns in visit(disk):
        part = gradient[:, columns]
        disk.write(k, torch.einsum('ro,ri->oi', part, x), torch.ones(len(part), dtype=part.dtype) @ part)
        of_x = of_x + torch.einsum('ro,oi->ri', part, weight)
    return of_x
