"""A program that trains an offloaded model until it is killed: python killed.py FOLDER."""

import sys

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.offload import Offloaded
from fewgpu.store import DiskStore, Store


def opened(store: Store) -> Offloaded:
    torch.manual_seed(5)
    layers = (nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Dropout(0.1)) for _ in range(6))
    return Offloaded(nn.Sequential(*layers), optimizer=torch.optim.Adam, loss_fn=nn.functional.mse_loss,
                     device=Device('cpu'), store=store)


def step(model: Offloaded) -> None:
    """The next one, whichever process does it."""
    torch.manual_seed(model.steps)
    model.step(torch.randn(8, 24), torch.randn(8, 24), 2)


if __name__ == '__main__':
    with DiskStore(sys.argv[1]) as store:
        model = opened(store)
        print('open', flush=True)
        while True:
            step(model)
            print(model.steps, flush=True)
