#!/usr/bin/env python3
"""Train a network on MNIST with plain PyTorch, on one device.

    ./workshop.py run exercises/mnist_pytorch.py --batchsize 64 --samples 512   # on a laptop
    ./workshop.py run exercises/mnist_pytorch.py                                # all of MNIST, on a GPU
    ./workshop.py run exercises/mnist_pytorch.py --arch resnet18 --epochs 2 --lr 0.05

How high can you go?

    ./workshop.py run exercises/mnist_pytorch.py --batchsize 128 --samples 256 --memory_limit 600MB
    ./workshop.py run exercises/mnist_pytorch.py --find_batchsize --memory_limit 600MB

Exercise 09 makes a pipeline of this script, in five steps.
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fewgpu import data, models
from fewgpu.workshop import arguments, ending, limits, report
from fewgpu.workshop.log import Log
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
    model.to(devices[0].torch)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)
    return model, optimizer, Watch(model, devices, optimizer)


def place(model, x, y):
    """Input and target of a mini-batch, where the model needs them."""
    device = next(model.parameters()).device
    return x.to(device), y.to(device)


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
    args = arguments.parse(__doc__)
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
