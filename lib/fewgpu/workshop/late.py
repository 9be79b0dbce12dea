"""What a gradient is worth whose backward met other weights than its forward."""

from collections.abc import Callable
from functools import partial
from statistics import fmean

import torch
from torch import nn
from torch.func import functional_call

from fewgpu import Pipeline, get_devices
from fewgpu.pipemare import PipeMare
from fewgpu.schedule import Schedule
from fewgpu.workshop.digits import mini_batches

STAGES, WIDTH, RATE, COUNT = 4, 16, 0.5, 40


def gradient_error(schedule: str | Callable[[int, int], Schedule]) -> float:
    """How far the gradients that the first of four stages used are from the model's, at the weights that
    the forward of the same mini-batch took on every stage: relative, the mean of twenty mini-batches.

    `schedule` is one that updates after every mini-batch and never flushes.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
                            for _ in range(STAGES))).double()
    past = [[_copied(stage)] for stage in model]
    pipeline = Pipeline(model, [1] * STAGES, schedule=schedule, loss_fn=nn.functional.mse_loss,
                        devices=get_devices(STAGES, kind='cpu'), optimizer=partial(torch.optim.SGD, lr=RATE))
    for (_, s), optimizer in pipeline.optimizers.items():
        own = optimizer.optimizer if isinstance(optimizer, PipeMare) else optimizer
        own.register_step_post_hook(lambda *_, s=s: past[s].append(_copied(model[s])))
    batches = [(x[:, 300:300 + WIDTH].double(), x[:, 400:400 + WIDTH].double())
               for x, _ in mini_batches(COUNT, 32)]
    pipeline.train(batches)
    return fmean(_error(model, past, k, *batches[k]) for k in range(COUNT - 20, COUNT))


def _error(model: nn.Module, past: list[list[dict]], k: int, x: torch.Tensor, y: torch.Tensor) -> float:
    used = (past[0][k]['0.weight'] - past[0][k + 1]['0.weight']) / RATE
    forward = {f'{s}.{name}': value.clone().requires_grad_() for s in range(STAGES)
               for name, value in past[s][max(k - (STAGES - 1 - s), 0)].items()}
    nn.functional.mse_loss(functional_call(model, forward, (x,)), y).backward()
    true = forward['0.0.weight'].grad
    return float((used - true).norm() / true.norm())


def _copied(stage: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in stage.named_parameters()}
