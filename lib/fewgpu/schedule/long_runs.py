"""Many mini-batches as one schedule: between two of them the pipeline does not drain."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule


def following(schedules: Sequence[Schedule]) -> Schedule:
    """Steps that each flush, one after the other: rows joined, micro-batches numbered on.

        device 0 | F0 F1 B0 B1 U1 F2 F3 B2 B3 U3      a device begins with the next mini-batch
        device 1 | F0 B0 F1 B1 U1 F2 B2 F3 B3 U3      while others are still in the last one

    An update gets the number of the last micro-batch before it. Nothing is stale: a device has made
    its update before it begins with the next mini-batch.
    """
    counts = [schedule.micro_batches for schedule in schedules]
    whole = replace(schedules[0], micro_batches=sum(counts),
                    update_every=counts[0] if len(set(counts)) == 1 else None)
    return replace(whole, rows=tuple(tuple(_row(device, schedules)) for device in range(len(whole.rows))))


def _row(device: int, schedules: Sequence[Schedule]) -> Iterator[Op]:
    first = 0
    for schedule in schedules:
        for op in schedule.rows[device]:
            number = op.micro_batch if op.micro_batch >= 0 else schedule.micro_batches - 1
            yield op._replace(micro_batch=first + number)
        first += schedule.micro_batches


def verify_whole_updates(schedule: Schedule, counts: Sequence[int]) -> None:
    """Raises ValueError if mini-batches of so many micro-batches would share an update."""
    for number, count in enumerate(counts):
        if count % schedule.update_every:
            raise ValueError(f'{schedule.name} updates after every {schedule.update_every} micro-batches, '
                             f'and mini-batch {number} has {count}: give every mini-batch at least as many '
                             f'rows as chunks')
