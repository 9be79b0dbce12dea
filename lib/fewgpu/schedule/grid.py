"""A schedule as text with one cell marked, and the error that shows it."""

from fewgpu.schedule.schedule import Schedule

CELLS, ROWS = 12, 6   # how many are shown on each side of the marked cell

Cell = tuple[int, int]   # device, position in its row


class ScheduleError(ValueError):
    """A schedule breaks a law: which, and where."""

    def __init__(self, why: str, schedule: Schedule, cell: Cell | None = None) -> None:
        super().__init__(f'{schedule.name}: {why}\n{grid(schedule, cell)}')


def grid(schedule: Schedule, marked: Cell | None = None) -> str:
    """The printed schedule, and one cell in brackets.

        device 0 | F0   F1   [B1] B0
        device 1 | F0   F1   B0   B1

    Unless stage s is all that device s holds, the number of the stage stands before each operation,
    as in 2F0.
    Of a large schedule only the surroundings of the marked cell are shown.
    """
    many = any(op.stage != device for device, row in enumerate(schedule.rows) for op in row)
    rows = [[f'{op.stage}{op}' if many else str(op) for op in row] for row in schedule.rows]
    top = first = 0
    if marked:
        device, position = marked
        top, first = max(device - ROWS, 0), max(position - CELLS, 0)
        rows[device][position] = f'[{rows[device][position]}]'
        rows = [row[first:position + CELLS + 1] for row in rows[top:device + ROWS + 1]]
    width = max((len(text) for row in rows for text in row), default=1)
    return '\n'.join(f'device {top + number} | ' + '.. ' * (first > 0)
                     + ' '.join(f'{text:<{width}}' for text in row).rstrip()
                     for number, row in enumerate(rows))
