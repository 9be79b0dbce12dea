"""The schedules of a pipeline's steps: made once for each number of micro-batches, with all passes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fewgpu.schedule.long_runs import following, verify_whole_updates
from fewgpu.schedule.op import Op, Skip
from fewgpu.schedule.passes import with_messages, with_recompute, with_skips, with_updates
from fewgpu.schedule.schedule import Schedule


class Plans:
    """What a pipeline does for a purpose, 'training' or 'evaluation', and so many micro-batches.

    `make` returns the schedule of a number of micro-batches; `checkpoint` says which of them are
    recomputed (see `with_recompute`), and `skips` are those of the model. `layout` is the schedule for
    `chunks` of them: it says where stages are, and that is so for every other number, too. `make_long`
    returns the schedule of many mini-batches, from the number of all their micro-batches.
    """

    def __init__(self, make: Callable[[int], Schedule], make_long: Callable[[int], Schedule], chunks: int,
                 checkpoint: str, skips: tuple[Skip, ...] = ()) -> None:
        self._make, self._make_long, self._chunks, self._checkpoint = make, make_long, chunks, checkpoint
        self._skips = skips
        self.layout = with_recompute(with_skips(make_long(chunks), skips), checkpoint)
        self._made: dict[tuple[str, int, bool], tuple[Schedule, Schedule]] = {}

    def of(self, purpose: str, micro_batches: int, targets: bool) -> tuple[Schedule, Schedule]:
        """The schedule, without and with its messages; `targets` come to the last stage as messages.

        Raises ValueError if its stages are on other devices than the layout's, and if there is no such schedule, as
        where a mini-batch has fewer rows than chunks.
        """
        key = purpose, micro_batches, targets
        if key not in self._made:
            whole = (evaluation(self.layout, micro_batches) if purpose == 'evaluation' else with_updates(
                with_recompute(self._in_layout(self._of_rows(micro_batches)), self._checkpoint)))
            self._made[key] = whole, with_messages(whole, targets=targets)
        return self._made[key]

    def _of_rows(self, micro_batches: int) -> Schedule:
        """Of a mini-batch that has rows enough for so many."""
        try:
            return self._make(micro_batches)
        except ValueError as error:
            if micro_batches >= self._chunks:
                raise
            raise ValueError(f'a mini-batch of {micro_batches} rows cannot be cut into {self._chunks} chunks, and '
                             f'{error}. Give every mini-batch at least {self._chunks} rows (drop_last=True in a '
                             f'DataLoader)') from None

    def long_run(self, counts: Sequence[int]) -> tuple[Schedule, Schedule]:
        """The schedule of mini-batches of so many micro-batches each, all in one, without and with its
        messages.

        Raises ValueError as `of` does, and if an update would cover parts of two mini-batches. (Where a stage
        has replicas, a round of theirs may.)
        """
        if self.layout.update_every is None:
            whole = replace(following([self.of('training', count, True)[0] for count in counts]),
                            update_every=None)   # an update is of a whole mini-batch, not of so many
        else:
            verify_whole_updates(self._make_long(self._chunks), counts)
            whole = with_recompute(self._in_layout(self._make_long(sum(counts))), self._checkpoint)
        return whole, with_messages(whole, targets=True)

    def in_the_long_run(self) -> Schedule:
        """A schedule so long that its end is like any later moment, without what it recomputes."""
        return self._make_long(self._chunks * (1 + -(-self.layout.stages // self._chunks)))

    def _in_layout(self, schedule: Schedule) -> Schedule:
        if schedule.devices_of != self.layout.devices_of:
            raise ValueError(f'the schedule {schedule.name} puts stages on other devices for '
                             f'{schedule.micro_batches} micro-batches than for {self._chunks}')
        return with_skips(schedule, self._skips)


def evaluation(layout: Schedule, micro_batches: int) -> Schedule:
    """The forwards of any number of micro-batches, where a schedule has its stages: F of micro-batch i on stage s
    in the order of i + s, so that nobody waits for ever."""
    rows: list[list[Op]] = [[] for _ in layout.rows]
    for _, s, i in sorted((i + s, s, i) for i in range(micro_batches) for s in range(layout.stages)):
        rows[layout.device_at(s, i % layout.micro_batches)].append(Op('F', s, i))
    return Schedule(layout.name, layout.stages, micro_batches, tuple(map(tuple, rows)), skips=layout.skips)
