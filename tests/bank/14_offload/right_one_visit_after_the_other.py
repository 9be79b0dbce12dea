import torch


def forward(machine, x, ahead):
    handles, following = {}, 0
    for k in range(machine.count):
        while following < machine.count and following <= k + ahead:
            if len(handles) > ahead:
                handles.pop(k - 1).free()
            handles[following] = machine.read(following)
            following += 1
        x = machine.forward(k, handles[k].wait(), x)
    return x, handles


def backward(machine, gradient, handles, ahead):
    for k in range(machine.count - 1, -1, -1):
        weights = handles[k].wait()
        gradient = machine.backward(k, weights, gradient)
        handles[k].free()
        following = k - (ahead + 1)
        if following < 0:
            continue
        handles[following] = machine.read(following)
    return gradient


def tiled_forward(disk, x):
    columns = []
    for k in reversed(range(disk.count)):
        handle = disk.read(k)
        weight, bias = handle.wait()
        for row, number in zip(weight.flip(0), bias.flip(0)):
            columns.insert(0, x @ row + number)
        handle.free()
    return torch.stack(columns, dim=1)


def tiled_backward(disk, x, gradient):
    end, of_x = gradient.shape[1], x * 0
    for k in reversed(range(disk.count)):
        handle = disk.read(k)
        weight = handle.wait()[0]
        start = end - weight.size(0)
        mine = gradient.narrow(1, start, end - start)
        disk.write(k, mine.t().mm(x), mine.sum(0))
        of_x.addmm_(mine, weight)
        handle.free()
        end = start
    return of_x
