"""The schedules of a pipeline's steps: made once for each number of micro-batches, with all passes."""

from collections.abc import Callable

from fewgpu.schedule.passes import with_messages, with_recompute, with_updates
from fewgpu.schedule.schedule import Schedule


class Plans:
    """What a pipeline does for a purpose, 'training' or 'evaluation', and so many micro-batches.

    `make` returns the schedule of a number of micro-batches; `checkpoint` says which of them are
    recomputed (see `with_recompute`). `layout` is the schedule for `chunks` of them: it says where
    stages are, and that is so for every other number, too.
    """

    def __init__(self, make: Callable[[int], Schedule], chunks: int, checkpoint: str) -> None:
        self._make, self._chunks, self._checkpoint = make, chunks, checkpoint
        self.layout = with_recompute(make(chunks), checkpoint)
        self._made: dict[tuple[str, int, bool], tuple[Schedule, Schedule]] = {}

    def of(self, purpose: str, micro_batches: int, targets: bool) -> tuple[Schedule, Schedule]:
        """The schedule, without and with its messages; `targets` come to the last stage as messages.

        Raises ValueError if its stages are on other devices than the layout's.
        """
        key = purpose, micro_batches, targets
        if key not in self._made:
            whole = self._make(micro_batches)
            if whole.devices_of != self.layout.devices_of:
                raise ValueError(f'the schedule {whole.name} puts stages on other devices for '
                                 f'{micro_batches} micro-batches than for {self._chunks}')
            whole = (whole.forwards() if purpose == 'evaluation'
                     else with_updates(with_recompute(whole, self._checkpoint)))
            self._made[key] = whole, with_messages(whole, targets=targets)
        return self._made[key]
