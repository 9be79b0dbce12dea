"""Joins the two halves of a step to the graph of whoever calls the model.

    inputs, parameters ──► Launch ──phony──► Collect ──► outputs ──► loss
                              ▲                 │
       runs the backward half ┘                 └ keeps the gradients of the outputs

The phony is an empty CPU tensor, also on GPUs: a node with CPU outputs runs in the thread that
called `backward`, so Launch may wait there while the workers call backward on their own devices.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.context import Context
from fewgpu.microbatch import gather, has_rows
from fewgpu.run import SpanFields, run
from fewgpu.schedule import Message, Schedule, activation, gradient, with_messages
from fewgpu.stage import Stage

Gradients = list[torch.Tensor | None]


class Step:
    """One forward, and the backward that belongs to it: a schedule that is run in two halves.

    `turn` is held while a half runs, and has to be when a Step is made: the stages put shadows in
    the place of the layers' parameters, and another step would take them for the parameters.
    """

    def __init__(self, schedule: Schedule, stages: list[Stage],
                 turn: contextlib.AbstractContextManager) -> None:
        self._turn = turn
        self._count = schedule.micro_batches
        self._last = schedule.stages - 1
        self._halves = tuple(map(with_messages, schedule.halves()))
        self._whole = schedule if torch.is_grad_enabled() else schedule.halves()[0]
        self._devices = [stage.device for stage in stages]
        self._context = Context.capture(self._devices)
        self._stages = {}
        for stage in stages:
            with _noted(f'in stage {stage.index} on {stage.device.name}, before the step'):
                self._stages[stage.index] = stage.begin(self._context, self._count)
        self.spans: list[list[SpanFields]] = [[] for _ in stages]   #: (operation, start, end), a row a device
        self._gradients: list[Gradients] = []    # of the outputs, a list a micro-batch
        self._outputs: list[torch.Tensor] = []   # on their way into the caller's graph
        self._freed = False

    def forward(self, inputs: Any, micro_batches: list[Any]) -> Any:
        """Run the forward half. The outputs belong to the caller's graph, if it has one."""
        leaves = pytree.tree_leaves(inputs)
        self._sources = [k for k, leaf in enumerate(leaves)
                         if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        self._source_devices = [leaves[k].device for k in self._sources]
        self._parameters = [parameter for stage in self._stages.values()
                            for parameter in stage.weights(0).shadows if parameter.requires_grad]
        phony = None
        if torch.is_grad_enabled():
            anchor = torch.empty(0, device='cpu', requires_grad=True)   # a layer may bring leaves
            phony = _Launch.apply(self, anchor, *[leaves[k] for k in self._sources],
                                  *self._parameters)
        outputs, needed = self._run_forward(micro_batches)
        if not any(needed):
            return outputs
        flat, spec = pytree.tree_flatten(outputs)
        where = [k for k, need in enumerate(needed) if need]
        self._outputs = [flat[k] for k in where]
        for k, joined in zip(where, _Collect.apply(self, where, phony)):
            flat[k] = joined
        return pytree.tree_unflatten(flat, spec)

    def _run_forward(self, micro_batches: list[Any]) -> tuple[Any, list[bool]]:
        self._input_rows = [next(len(leaf) for leaf in pytree.tree_leaves(value) if has_rows(leaf))
                            for value in micro_batches]
        feed = {activation(0, i): value for i, value in enumerate(micro_batches)}
        outputs = self._run(0, feed, [activation(self._last + 1, i)
                                      for i in range(self._count)])
        leaves = [pytree.tree_leaves(output) for output in outputs]
        self._rows = [[len(leaf) if has_rows(leaf) else None for leaf in row] for row in leaves]
        needed = [any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in column)
                  for column in zip(*leaves)]
        last = self._devices[-1]
        with last.counting(), torch.no_grad(), _noted(f'in stage {self._last} on {last.name}, '
                                                      f'putting the micro-batches together'):
            return gather(outputs), needed

    def take_outputs(self) -> tuple[torch.Tensor, ...]:
        outputs, self._outputs = self._outputs, []
        return tuple(outputs)

    def keep_gradients(self, where: list[int], gradients: Gradients) -> None:
        """Cut the gradients of the outputs `where` into micro-batches."""
        self._gradients = [[None] * len(self._rows[0]) for _ in range(self._count)]
        for k, whole in zip(where, gradients):
            if whole is None:
                continue
            rows = [rows_of_batch[k] for rows_of_batch in self._rows]
            parts = [whole] if rows[0] is None else whole.split(rows)
            for i, part in enumerate(parts):
                self._gradients[i][k] = part

    def backward(self, retain_graph: bool) -> Gradients:
        """Run the rest of the schedule; gradients of the inputs, then of the parameters."""
        if self._context.streams and isinstance(threading.current_thread(), threading._DummyThread):
            raise RuntimeError('the backward of a pipeline would block the thread in which torch runs '
                               'the backwards of a GPU: use torch.utils.checkpoint with '
                               'use_reentrant=False, or call backward from a thread of Python')
        if self._freed:
            raise RuntimeError('the graph of this forward was freed by its first backward; to go '
                               'through it a second time use backward(retain_graph=True) the first '
                               'time')
        self._freed = not retain_graph
        for stage in self._stages.values():
            stage.take_gradients()   # of a backward that failed half-way
        feed = {gradient(self._last, i): gradients
                for i, gradients in enumerate(self._gradients)}
        self._gradients = []
        with self._turn:
            micro_batches = self._run(1, feed, [gradient(-1, i)
                                                for i in range(self._count)],
                                      retain_graph=retain_graph)
        gathered: dict[nn.Parameter, torch.Tensor | None] = {}
        for stage in self._stages.values():
            gathered.update(stage.take_gradients())
        with self._context.on_streams():
            result = [*(self._input_gradient(k, device, micro_batches)
                        for k, device in zip(self._sources, self._source_devices)),
                      *(gathered.pop(parameter) for parameter in self._parameters)]
        self._context.hand_over(result)
        return result

    def _input_gradient(self, k: int, device: torch.device,
                        micro_batches: list[Gradients]) -> torch.Tensor | None:
        parts = [gradients[k] for gradients in micro_batches]
        if all(part is None for part in parts):
            return None
        like = next(part for part in parts if part is not None)
        if not has_rows(like):   # every micro-batch had the same tensor
            return sum(part.to(device) for part in reversed(parts) if part is not None)
        return torch.cat([like.new_zeros(rows, *like.shape[1:]) if part is None else part
                          for part, rows in zip(parts, self._input_rows)]).to(device)

    def _run(self, half: int, feed: dict[Message, Any], collect: list[Message],
             **options: Any) -> list[Any]:
        values, spans = run(self._halves[half], range(len(self._devices)), self._devices,
                            [{s: stage} for s, stage in self._stages.items()], feed, collect,
                            whole=self._whole, **options)
        for row, new in zip(self.spans, spans):
            row += new
        return values


@contextlib.contextmanager
def _noted(where: str) -> Iterator[None]:
    """An error inside is told where it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise


class _Launch(torch.autograd.Function):
    """Forward: nothing but a phony. Backward: the backward half of the step."""

    @staticmethod
    def forward(ctx, step: Step, anchor: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.step = step
        return torch.empty(0, device='cpu')

    @staticmethod
    def backward(ctx, _: torch.Tensor) -> tuple:
        if torch.is_grad_enabled():
            raise RuntimeError('a pipeline has no gradient of its gradient: call backward without '
                               'create_graph, or use the plain module')
        retain_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        return None, None, *ctx.step.backward(retain_graph)


class _Collect(torch.autograd.Function):
    """Forward: the outputs. Backward: keeps their gradients for Launch."""

    @staticmethod
    def forward(ctx, step: Step, where: list[int], phony: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.where = step, where
        ctx.set_materialize_grads(False)
        return step.take_outputs()

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor | None) -> tuple:
        ctx.step.keep_gradients(ctx.where, gradients)
        return None, None, torch.empty(0, device='cpu')
