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

        device 0 | F0   F1 [B1] B0
        device 1 | F0   F1  B0  B1

    If devices hold several stages the number of the stage stands before each operation, as in 2F0.
    Of a large schedule only the surroundings of the marked cell are shown.
    """
    device, position = marked or (0, 0)
    many = len(set(schedule.device_of.values())) < len(schedule.device_of)
    rows = [[f'{op.stage}{op}' if many else str(op) for op in row] for row in schedule.rows]
    if marked:
        rows = [[f' {text} ' for text in row] for row in rows]
        rows[device][position] = f'[{rows[device][position].strip()}]'
    first, top = max(position - CELLS, 0), max(device - ROWS, 0)
    shown = [row[first:position + CELLS + 1] for row in rows[top:device + ROWS + 1]]
    widths = [max((len(row[column]) for row in shown if column < len(row)), default=0)
              for column in range(max(map(len, shown), default=0))]
    before = '.. ' if first else ''
    return '\n'.join(
        f'device {top + number} | {before}'
        + ' '.join(f'{text:<{width}}' for text, width in zip(row, widths)).rstrip()
        for number, row in enumerate(shown))
