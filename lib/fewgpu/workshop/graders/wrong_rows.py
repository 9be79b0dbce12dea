"""Popular rows that are not 1F1B."""

from collections.abc import Callable

from fewgpu.workshop.graders.schedules import Sentence, like
from fewgpu.workshop.grading.law import Suspect
from fewgpu.workshop.practice.rows import Rows, Sizes, micro_batch

WarmUp = Callable[[int, int], int]   # of (stage, stages)


def rows_with(sizes: Sizes, warm_up: WarmUp, *, backward_first: bool = False) -> Rows:
    """What a learner's rows would be who has that warm-up."""
    rows = []
    for stage in range(sizes[0]):
        warm = min(max(warm_up(stage, sizes[0]), 0), sizes[1])
        row = [f'F{i}' for i in range(warm)]
        for i in range(warm, sizes[1]):
            row += [f'B{i - warm}', f'F{i}'] if backward_first else [f'F{i}', f'B{i - warm}']
        rows.append(row + [f'B{i}' for i in range(sizes[1] - warm, sizes[1])])
    return rows


def in_groups(sizes: Sizes, group: WarmUp, newest: bool) -> Rows:
    """So many forwards and then their backwards, again and again."""
    rows: Rows = []
    for stage in range(sizes[0]):
        rows.append([])
        for start in range(0, sizes[1], size := group(stage, sizes[0])):
            numbers = list(range(start, min(start + size, sizes[1])))
            rows[-1] += [f'F{i}' for i in numbers] + [f'B{i}' for i in (numbers[::-1] if newest else numbers)]
    return rows


def warm_ups() -> list[Suspect]:
    """The wrong warm-ups, and groups; they break the law of time, or that of memory, or the step never ends."""
    wrong: list[tuple[str, WarmUp]] = [
        ('no-warm-up', lambda s, n: 0), ('warm-up-short', lambda s, n: n - 2 - s), ('warm-up-long', lambda s, n: n - s),
        ('warm-up-equal', lambda s, n: n - 1), ('warm-up-equal', lambda s, n: n), ('warm-up-reversed', lambda s, n: s),
        ('warm-up-reversed', lambda s, n: s + 1), ('warm-up-double', lambda s, n: 2 * (n - 1 - s)),
        ('warm-up-double', lambda s, n: 2 * (n - s)), ('warm-up-double', lambda s, n: 2 * (n - s) - 1)]
    suspects = [Suspect(name, lambda sizes, warm_up=warm_up: rows_with(sizes, warm_up)) for name, warm_up in wrong]
    sizes_of_groups: list[WarmUp] = [lambda s, n: n - s, lambda s, n: n, *(lambda s, n, k=k: k for k in (2, 3, 4))]
    groups = [(group, newest) for group in sizes_of_groups for newest in (False, True)]
    return [*suspects, *(Suspect('flush', lambda sizes, each=each: in_groups(sizes, *each)) for each in groups)]


def newest_first(wrong: Sentence) -> Suspect:
    """Would the rows be right by the law `wrong` with their backwards in the order of the forwards?"""
    def fits(rows: Rows, n: int, m: int) -> bool:
        mended = []
        for row in rows:
            back = iter(sorted((cell for cell in row if cell[0] == 'B'), key=micro_batch))
            mended.append([next(back) if cell[0] == 'B' else cell for cell in row])
            if any(cell[0] == 'B' and row.index(f'F{cell[1:]}') > place for place, cell in enumerate(row)):
                return False   # it has another fault
        return mended != rows and not wrong((n, m), mended)

    return like('newest-first', fits)
