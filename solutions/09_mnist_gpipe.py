#!/usr/bin/env python3
"""Exercise 09: train a network on MNIST as a pipeline of several devices, with GPipe (about 30 minutes).

It starts as the plain script, exercises/mnist_pytorch.py. Five marked steps make a pipeline of it: each device holds
some of the layers, and works on one micro-batch while its neighbours work on others.

    ./workshop.py check 09                                                       # is it right?
    ./workshop.py run solutions/09_mnist_gpipe.py --batchsize 64 --samples 512   # on a laptop
    ./workshop.py run solutions/09_mnist_gpipe.py                                # all of MNIST, on GPUs
    ./workshop.py run solutions/09_mnist_gpipe.py --balance_by memory --num_microbatches 12

How high can you go?

    ./workshop.py run solutions/09_mnist_gpipe.py --batchsize 128 --samples 256 --memory_limit 600MB
    ./workshop.py run solutions/09_mnist_gpipe.py --find_batchsize --memory_limit 600MB

The difference from the plain script is five steps, and `diff` shows them:

    diff exercises/mnist_pytorch.py exercises/09_mnist_gpipe.py
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fewgpu import data, models
from fewgpu.balance import balance_by_size, balance_by_time
from fewgpu.workshop import arguments, ending, limits, report
from fewgpu.workshop.log import Log
from fewgpu.workshop.peer import pipeline_of
from fewgpu.workshop.watch import Watch, devices_of


def load(args):
    """Mini-batches to train on, in an order that depends on the seed alone, and to test on."""
    train_set, test_set = data.load('train', args.datadir), data.load('test', args.datadir)
    if args.samples:
        train_set = data.subset(train_set, args.samples, seed=args.seed)
    test_set = data.subset(test_set, args.test_samples)
    options = {'batch_size': args.batchsize, 'num_workers': args.num_workers_dataloader}
    order = torch.Generator().manual_seed(args.seed)
    return DataLoader(train_set, shuffle=True, generator=order, **options), DataLoader(test_set, **options)


def build(args):
    """The model where it is trained, its optimizer, and a meter that watches both."""
    devices = devices_of(args)
    torch.manual_seed(args.seed)        # the same first weights in every script
    model = models.build(args.arch)     # an nn.Sequential: layer after layer
    # STEP 1: keep it an nn.Sequential, for it is cut between its layers (it is one: nothing to do)
    # END
    # STEP 2: no model.to(device) any more: GPipe moves every stage to its own device
    # was: model.to(devices[0].torch)
    # END
    # STEP 3: choose the balance, how many layers each stage gets: args.balance_by is 'time', 'memory', or already a
    #         list of numbers. To measure with, any images will do: random ones of shape (rows, 1, 28, 28), for example.
    # Hint: balance_by_time(stages, model, micro_batch), or balance_by_size(stages, model, mini_batch, chunks=...,
    #       param_scale=...): chunks says into how many micro-batches it is cut, and param_scale how many numbers
    #       training keeps of each parameter (it, its gradient and, with args.momentum, its momentum)
    stages, sample = len(devices), torch.rand(args.batchsize, 1, 28, 28)
    if args.balance_by == 'time':
        micro_batch = sample.chunk(args.num_microbatches)[0]
        balance = balance_by_time(stages, model, micro_batch, device=devices[0])
    elif args.balance_by == 'memory':
        copies = 3 if args.momentum else 2      # of each parameter: it, its gradient, its momentum
        balance = balance_by_size(stages, model, sample, chunks=args.num_microbatches,
                                  param_scale=copies, device=devices[0])
    else:
        balance = args.balance_by               # the numbers themselves
    # END
    # STEP 4: wrap the model in GPipe, with its balance, devices, micro-batches and recompute
    # Hint: GPipe = pipeline_of(args.engine); model = GPipe(model, balance, devices=..., chunks=..., checkpoint=...)
    #       The flags are args.num_microbatches and args.checkpoint.
    GPipe = pipeline_of(args.engine)            # fewgpu.GPipe, or torchgpipe's to compare with
    model = GPipe(model, balance, devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    # END
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)
    return model, optimizer, Watch(model, devices, optimizer)


def place(model, x, y):
    """Input and target of a mini-batch, where the model needs them."""
    # STEP 5: the input goes to the first device, the target to the last
    # Hint: model.devices is the list of them
    # was: device = next(model.parameters()).device
    # was: return x.to(device), y.to(device)
    return x.to(model.devices[0]), y.to(model.devices[-1])
    # END


def train(model, optimizer, meter, batches):
    """One epoch; the loss of its last mini-batch."""
    model.train()
    for x, y in batches:
        with meter.step(len(x)):        # samples/sec and memory of what is done in here
            x, y = place(model, x, y)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model, batches):
    """Mean loss, and the share of samples that are recognised."""
    model.eval()
    loss, correct, samples = 0.0, 0, 0
    for x, y in batches:
        x, y = place(model, x, y)
        output = model(x)
        loss += F.cross_entropy(output, y, reduction='sum').item()
        correct += (output.argmax(dim=1) == y).sum().item()
        samples += len(x)
    return loss / samples, correct / samples


def main():
    args = arguments.parse(__doc__, pipeline=True)
    if args.find_batchsize or args.find_depth:
        return limits.find(args, build, train)
    train_batches, test_batches = load(args)
    model, optimizer, meter = build(args)
    log = Log(args, meter)
    for _ in range(args.epochs):
        train_loss = train(model, optimizer, meter, log.batches(train_batches))
        log.trained(train_loss)
    test_loss, accuracy = test(model, test_batches)
    log.tested(test_loss, accuracy)
    report.write(args, meter, loss=train_loss, accuracy=accuracy)


if __name__ == '__main__':
    ending.run(main)
