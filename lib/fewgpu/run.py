"""The interpreter: one device carries out its row of a schedule, operation by operation.

Every schedule runs here, forward and backward, on threads and on ranks. There is no other training
loop.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fewgpu.device import Device
from fewgpu.schedule import SHARE, Message, Op, Schedule, activation, gradient, share, skip_name, target
from fewgpu.stage import Shares, StageStep
from fewgpu.transport import Mailbox, Parcel, Stopped, call_devices
from fewgpu.where import learners_line

SpanFields = tuple   # of a Span, with times as Device.now gives them


def run(schedule: Schedule, rows: Sequence[int], devices: Sequence[Device],
        stages: Sequence[Mapping[int, StageStep]], feed: Mapping[Message, Any],
        collect: Iterable[Message], *,
        whole: Schedule, mailbox: Mailbox | None = None, retain_graph: bool = False,
        spans: list[list[SpanFields]] | None = None) -> tuple[list[Any], list[list[SpanFields]]]:
    """Run `rows` of a schedule (with messages), each in the worker of its device, until all are done.

    On threads those are all rows, and on ranks it is one, whose `mailbox` knows the other ranks.
    `stages` are what each of them holds, by the number of the stage.
    `feed` are the messages that the caller sends, `collect` those that it takes; `whole` is the
    schedule without messages, and with what runs later: it says what a forward must keep.

    Returns the collected values in order, and what every device did when, a list a row of the
    schedule (the empty lists `spans`, if they are given: so they are known, too, if the step fails).
    The first error of any device is raised here, when all have stopped.
    """
    mailbox = mailbox or Mailbox(schedule)
    spans = [[] for _ in schedule.rows] if spans is None else spans
    jobs = [Interpreter(schedule, row, held, mailbox, whole=whole, spans=spans[row],
                        retain_graph=retain_graph).run for row, held in zip(rows, stages, strict=True)]
    return call_devices(mailbox, devices, jobs, feed, collect), spans


class Interpreter:
    """Device `device` runs its row of `schedule` (with messages) on the stages it holds.

    GPipe runs the forwards, lets the caller compute the loss, and then runs the rest: `schedule` may
    be a part of the `whole` one, which tells what a forward leaves behind and which weights it uses.

    A value that was received, or is to be sent, is kept under the name of its message. `spans`
    receives the fields of a Span for each operation.
    """

    def __init__(self, schedule: Schedule, device: int, stages: Mapping[int, StageStep],
                 mailbox: Mailbox, *, whole: Schedule, spans: list[SpanFields],
                 retain_graph: bool = False) -> None:
        self._row, self._index = schedule.rows[device], device
        self._do = {'recv': self._recv, 'send': self._send, 'F': self._forward,
                    'R': self._recompute, 'B': self._backward, 'I': self._backward_inputs,
                    'W': self._backward_weights, 'U': self._update}
        self._stages, self._mailbox = stages, mailbox
        self._whole, self._spans, self._retain_graph = whole, spans, retain_graph
        self._values: dict[Message, Any] = {}
        self._imports = {s: [skip for skip in schedule.skips if skip.stage == s] for s in stages}
        self._exports = {s: [skip for skip in schedule.skips if skip.source == s] for s in stages}

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
            self._stages, self._do = {}, {}
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

    def _run_op(self, op: Op, stage: StageStep, device: Device) -> SpanFields:
        start = device.now()
        with device.paced(op.message is None):
            version = self._do[op.kind](op, stage)
        live = None if device.ledger is None else device.ledger.allocated
        return op, start, device.now(), live, version

    def _recv(self, op: Op, stage: StageStep) -> None:
        parcel = self._mailbox.recv(op.message, self._index)
        device, sender = stage.stage.device, self._whole.sender_of(op.message)
        if device.link is not None and sender not in (None, self._index):
            self._mailbox.arrived[op.message] = device.link.wait(parcel.value, parcel.sent, sender)
        else:
            self._mailbox.arrived[op.message] = parcel.sent
        # What a skip carries nobody changes in place: where it stays on a device it need not be copied.
        stays = sender == self._index and skip_name(op.message.what) is not None
        self._values[op.message] = parcel.value if stays else parcel.copy_to(device.torch)
        if parcel.own and device.ledger is not None:   # no operation of this device made it
            device.ledger.adopt(leaf for leaf in pytree.tree_leaves(self._values[op.message])
                                if isinstance(leaf, torch.Tensor))

    def _send(self, op: Op, stage: StageStep) -> None:
        value = self._own_share(op, stage) if op.message.what == SHARE else self._values.pop(op.message)
        self._mailbox.send(op.message, Parcel.of(value))

    def _own_share(self, op: Op, stage: StageStep) -> Shares:
        """What this device has for the update that follows: the same for all the others, and for itself."""
        own = share(op, self._index, self._index)
        if own not in self._values:
            self._values[own] = stage.take_share()
        return self._values[own]

    def _forward(self, op: Op, stage: StageStep) -> int:
        _, s, i, _ = op
        inputs, version = self._values.pop(activation(s, i)), self._whole.version(s, i)
        if self._imports[s]:
            inputs = {skip.name: self._values.pop(skip.activation(i)) for skip in self._imports[s]}, inputs
        if target(s, i) in self._values:   # the last stage of a Pipeline computes the loss, too
            inputs = inputs, self._values.pop(target(s, i))
        outputs = stage.forward(i, inputs, self._whole.keeps(s, i), version)
        if self._exports[s]:
            skips, outputs = outputs
            self._values |= {skip.activation(i): skips[skip.name] for skip in self._exports[s]}
        self._values[activation(s + 1, i)] = outputs
        return version

    def _recompute(self, op: Op, stage: StageStep) -> int:
        stage.recompute(op.micro_batch)
        return self._whole.version(op.stage, op.micro_batch, op.kind)

    def _backward(self, op: Op, stage: StageStep) -> int:
        return self._carry_gradients(op, partial(stage.backward, retain_graph=self._retain_graph))

    def _backward_inputs(self, op: Op, stage: StageStep) -> int:
        return self._carry_gradients(op, stage.backward_inputs)

    def _carry_gradients(self, op: Op, backward: Callable[[int, Any], Any]) -> int:
        _, s, i, _ = op
        of_skips = [part for skip in self._exports[s] for part in self._values.pop(skip.gradient(i))]
        gradients = backward(i, [*of_skips, *self._values.pop(gradient(s, i))])
        self._values |= {skip.gradient(i): [part] for skip, part in zip(self._imports[s], gradients)}
        self._values[gradient(s - 1, i)] = gradients[len(self._imports[s]):]
        return self._whole.version(s, i, op.kind)

    def _backward_weights(self, op: Op, stage: StageStep) -> int:
        stage.backward_weights(op.micro_batch)
        return self._whole.version(op.stage, op.micro_batch, op.kind)

    def _update(self, op: Op, stage: StageStep) -> int:
        devices = self._whole.devices_of[op.stage]
        shares = [self._values.pop(share(op, device, self._index)) for device in devices
                  ] if len(devices) > 1 else None
        stage.update(self._whole.needed_after(op.stage, stage.updates), shares)
        return stage.updates


@contextlib.contextmanager
def telling_who_updated(stages: Sequence[Mapping[int, StageStep]], what: str = 'weights') -> Iterator[None]:
    """If a step ends half-way, say which weights it has changed (`what`: without optimizers it is gradients)."""
    try:
        yield
    except BaseException as error:
        made = {s: stage.updates for held in stages for s, stage in sorted(held.items()) if stage.updates}
        often = f' ({", ".join(map(str, made.values()))} times)' if set(made.values()) - {1} else ''
        if made:
            remedy = 'load a checkpoint' if what == 'weights' else 'set all gradients to None'
            error.add_note(f'the {what} of stages {", ".join(map(str, made))} have been updated{often} in this '
                           f'step, those of others perhaps not: {remedy} before you go on')
        raise


def _explain(error: BaseException, op: Op, device: str) -> None:
    """Say where in the pipeline it happened, and in which line that the learner wrote."""
    what = {'send': 'send', 'F': 'forward', 'R': 'recompute', 'B': 'backward', 'recv': 'receive', 'U': 'update',
            'I': 'backward of the inputs', 'W': 'backward of the weights'}[op.kind]
    batch = f' of micro-batch {op.micro_batch}' if op.micro_batch >= 0 else ''
    error.add_note(f'in stage {op.stage} on {device}, {what}{batch} ({op}){learners_line(error)}')
