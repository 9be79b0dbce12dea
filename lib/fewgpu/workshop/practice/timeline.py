"""Spans of virtual time, drawn as text."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float, str]   # from, to, and the letter that stands for it
WIDTH = 60


def timeline(rows: Sequence[tuple[str, Iterable[Span]]], until: float, unit: str = 's') -> str:
    """One line a row, at most 78 characters wide; nothing happens where there are dots. `until` is the right end.

        rank 0   11111....22222....
        rank 1   .........11111....
    """
    longest = max(len(name) for name, _ in rows)
    lines = []
    for name, spans in rows:
        line = ['.'] * WIDTH
        for start, end, letter in spans:
            first = min(int(start / until * WIDTH), WIDTH - 1) if until else 0
            last = max(first + 1, round(end / until * WIDTH)) if until else 1
            line[first:last] = letter[:1] * (min(last, WIDTH) - first)
        lines.append(f'{name:<{longest}}  {"".join(line)}')
    end = f'{until:g} {unit}'
    lines.append(f'{"":<{longest}}  0{end:>{WIDTH - 1}}')
    return '\n'.join(lines)
