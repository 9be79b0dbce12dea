"""The interpreter: one device carries out its row of a schedule, operation by operation.

Every schedule runs here, forward and backward, on threads and on ranks. There is no other training
loop.
"""

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fewgpu.device import Device
from fewgpu.schedule import Message, Op, Schedule, activation, gradient, target
from fewgpu.stage import StageStep
from fewgpu.transport import Mailbox, Parcel, Stopped, call_devices

Stamps = list[tuple]   # the fields of a Span, with times as Device.now gives them


def run_on_threads(schedule: Schedule, devices: Sequence[Device], stages: Mapping[int, StageStep],
                   feed: Mapping[Message, Any], collect: Iterable[Message], *, plan: Schedule,
                   retain_graph: bool = False,
                   time_limit: float | None = None) -> tuple[list[Any], list[Stamps]]:
    """Run a schedule (with messages), row d in the worker of `devices[d]`, until it is done.

    `feed` are the messages that the caller sends, `collect` those that it takes; `plan` see
    `Interpreter`. Returns the collected values in order, and what every device did when. The first
    error of any device is raised here, when all have stopped.
    """
    mailbox = Mailbox(schedule, time_limit=time_limit)
    spans: list[Stamps] = [[] for _ in devices]
    jobs = [Interpreter(schedule, index, stages, mailbox, plan=plan, spans=spans[index],
                        retain_graph=retain_graph).run for index in range(len(devices))]
    return call_devices(mailbox, devices, jobs, feed, collect), spans


class Interpreter:
    """Device `device` runs its row of `schedule` (with messages) on the stages it holds.

    A schedule may be run in two halves; `plan` is the whole one: it tells what a forward leaves
    behind, and which weights it uses. Values between operations are kept under the names of their
    messages. `spans` receives the fields of a Span for each operation.
    """

    def __init__(self, schedule: Schedule, device: int, stages: Mapping[int, StageStep],
                 mailbox: Mailbox, *, plan: Schedule, spans: Stamps,
                 retain_graph: bool = False) -> None:
        self._row, self._index = schedule.rows[device], device
        self._stages, self._mailbox = stages, mailbox
        self._plan, self._spans, self._retain_graph = plan, spans, retain_graph
        self._values: dict[Message, Any] = {}

    def run(self) -> None:
        """Run the row. An error is given to the mailbox, which stops the other devices."""
        try:
            if self._row:
                self._run_row()
        except Stopped:
            pass
        except BaseException as error:   # SystemExit and KeyboardInterrupt reach the caller too
            self._mailbox.abort(error)
        finally:   # with `done` the caller goes on; this thread must not hold its step any longer
            self._values.clear()
            self._stages = {}
            self._mailbox.done(self._index)

    def _run_row(self) -> None:
        stage = self._stages[self._row[0].stage]   # all stages of a row share device and modes
        device = stage.stage.device
        with stage.context.entered(device), device.counting():
            for position, op in enumerate(self._row):
                self._mailbox.at(self._index, position)
                try:
                    self._spans.append(self._run_op(op, self._stages[op.stage], device))
                except Stopped:
                    raise
                except BaseException as error:
                    _explain(error, op, device.name)
                    raise

    def _run_op(self, op: Op, stage: StageStep, device: Device) -> tuple:
        start = device.now()
        with device.paced(op.message is None):
            version = getattr(self, f'_{op.kind}')(op, stage)
        return op, start, device.now(), device.ledger and device.ledger.allocated, version

    def _recv(self, op: Op, stage: StageStep) -> None:
        parcel = self._mailbox.recv(op.message, self._index)
        device = stage.stage.device
        if device.link is not None and 0 <= op.message.source < self._plan.stages:
            device.link.wait(parcel.value, parcel.sent, op.message.source)
        self._values[op.message] = parcel.copy_to(device.torch)

    def _send(self, op: Op, stage: StageStep) -> None:
        self._mailbox.send(op.message, Parcel.of(self._values.pop(op.message)))

    def _F(self, op: Op, stage: StageStep) -> int:
        _, s, i, _ = op
        inputs, version = self._values.pop(activation(s, i)), self._plan.version(s, i)
        if target(s, i) in self._values:   # the last stage of a Pipeline computes the loss, too
            inputs = inputs, self._values.pop(target(s, i))
        self._values[activation(s + 1, i)] = stage.forward(i, inputs, self._plan.keeps(s, i), version)
        return version

    def _R(self, op: Op, stage: StageStep) -> int:
        stage.recompute(op.micro_batch)
        return self._plan.version(op.stage, op.micro_batch)

    def _B(self, op: Op, stage: StageStep) -> int:
        return self._carry_gradients(op, partial(stage.backward, retain_graph=self._retain_graph))

    def _I(self, op: Op, stage: StageStep) -> int:
        return self._carry_gradients(op, stage.backward_inputs)

    def _carry_gradients(self, op: Op, backward: Callable[[int, Any], Any]) -> int:
        _, s, i, _ = op
        self._values[gradient(s - 1, i)] = backward(i, self._values.pop(gradient(s, i)))
        return self._plan.version(s, i)

    def _W(self, op: Op, stage: StageStep) -> int:
        stage.backward_weights(op.micro_batch)
        return self._plan.version(op.stage, op.micro_batch)

    def _U(self, op: Op, stage: StageStep) -> int:
        stage.update(self._plan.needed_after(op.stage, stage.updates))
        return stage.updates


def _explain(error: BaseException, op: Op, device: str) -> None:
    """Say where in the pipeline it happened, and in which line that the learner wrote."""
    what = {'send': 'send', 'F': 'forward', 'R': 'recompute', 'B': 'backward', 'recv': 'receive', 'U': 'update',
            'I': 'backward of the inputs', 'W': 'backward of the weights'}[op.kind]
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if not frame.filename.startswith(_LIBRARIES)]
    line = f', at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}' if own else ''
    batch = f' of micro-batch {op.micro_batch}' if op.micro_batch >= 0 else ''
    error.add_note(f'in stage {op.stage} on {device}, {what}{batch} ({op}){line}')


_LIBRARIES = (*(os.path.join(folder, '') for folder in (
    *(os.path.dirname(file) for file in (torch.__file__, __file__)),
    *(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')))),
    '<frozen ')
