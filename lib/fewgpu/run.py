"""The interpreter: one device carries out its row of a schedule, operation by operation.

Every schedule runs here, forward and backward, on threads and on ranks. There is no other training
loop.
"""

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from fewgpu.device import Device
from fewgpu.schedule import ACTIVATION, GRADIENT, Message, Op, Schedule
from fewgpu.stage import StageStep
from fewgpu.transport import Mailbox, Parcel, Stopped, call_devices

Stamps = list[tuple[Op, Any, Any]]   # (operation, start, end), as Device.now gives them


def run_on_threads(schedule: Schedule, devices: Sequence[Device], stages: Mapping[int, StageStep],
                   feed: Mapping[Message, Any], collect: Iterable[Message], *,
                   keeps: Callable[[int, int], str], retain_graph: bool = False,
                   time_limit: float | None = None) -> tuple[list[Any], list[Stamps]]:
    """Run a schedule (with messages), row d in the worker of `devices[d]`, until it is done.

    `feed` are the messages that the caller sends, `collect` those that it takes. Returns the
    collected values in order, and what every device did when. The first error of any device is
    raised here, when all have stopped.
    """
    mailbox = Mailbox(schedule, time_limit=time_limit)
    spans: list[Stamps] = [[] for _ in devices]
    jobs = [Interpreter(schedule, index, stages, mailbox, keeps=keeps, spans=spans[index],
                        retain_graph=retain_graph).run for index in range(len(devices))]
    return call_devices(mailbox, devices, jobs, feed, collect), spans


class Interpreter:
    """Device `device` runs its row of `schedule` (with messages) on the stages it holds.

    `keeps(stage, micro_batch)` tells what a forward leaves behind: a schedule may be run in two
    halves, and only the whole knows. Values between operations are kept under the names of their
    messages. `spans` receives (operation, start, end) for each operation.
    """

    def __init__(self, schedule: Schedule, device: int, stages: Mapping[int, StageStep],
                 mailbox: Mailbox, *, keeps: Callable[[int, int], str], spans: Stamps,
                 retain_graph: bool = False) -> None:
        self._row, self._index = schedule.rows[device], device
        self._stages, self._mailbox = stages, mailbox
        self._keeps, self._spans, self._retain_graph = keeps, spans, retain_graph
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
                start = device.now()
                try:
                    getattr(self, f'_{op.kind}')(op, self._stages[op.stage])
                except Stopped:
                    raise
                except BaseException as error:
                    _explain(error, op, device.name)
                    raise
                self._spans.append((op, start, device.now()))

    def _recv(self, op: Op, stage: StageStep) -> None:
        parcel = self._mailbox.recv(op.message, self._index)
        self._values[op.message] = parcel.copy_to(stage.stage.device.torch)

    def _send(self, op: Op, stage: StageStep) -> None:
        self._mailbox.send(op.message, Parcel.of(self._values.pop(op.message)))

    def _F(self, op: Op, stage: StageStep) -> None:
        inputs = self._values.pop(Message(ACTIVATION, op.stage, op.micro_batch))
        self._values[Message(ACTIVATION, op.stage + 1, op.micro_batch)] = stage.forward(
            op.micro_batch, inputs, self._keeps(op.stage, op.micro_batch))

    def _R(self, op: Op, stage: StageStep) -> None:
        stage.recompute(op.micro_batch)

    def _B(self, op: Op, stage: StageStep) -> None:
        gradients = self._values.pop(Message(GRADIENT, op.stage, op.micro_batch))
        self._values[Message(GRADIENT, op.stage - 1, op.micro_batch)] = stage.backward(
            op.micro_batch, gradients, retain_graph=self._retain_graph)


def _explain(error: BaseException, op: Op, device: str) -> None:
    """Say where in the pipeline it happened, and in which line that the learner wrote."""
    what = {'F': 'forward', 'R': 'recompute', 'B': 'backward', 'recv': 'receive'}
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if not frame.filename.startswith(_LIBRARIES)]
    line = f', at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}' if own else ''
    error.add_note(f'in stage {op.stage} on {device}, {what.get(op.kind, op.kind)} of micro-batch '
                   f'{op.micro_batch} ({op}){line}')


_LIBRARIES = (*(os.path.join(folder, '') for folder in (
    *(os.path.dirname(file) for file in (torch.__file__, __file__)),
    *(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')))),
    '<frozen ')
