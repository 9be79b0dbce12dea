"""For trying out an exercise by hand: rows of a schedule, drawn in virtual time."""

from typing import Any

from fewgpu.workshop.graders.schedules import broken, picture, plain_rows


def show(rows: Any, micro_batches: int) -> None:
    """Prints rows, one a stage, in virtual time (a forward takes 1, a backward 2), and what is wrong with them."""
    rows = plain_rows(rows)
    if rows is None:
        return print('   nothing yet')
    wrong = broken((len(rows) if isinstance(rows, list) else 0, micro_batches), rows)
    print(picture(rows) or repr(rows))
    if wrong:
        print(f'This is no training step. {wrong}')
