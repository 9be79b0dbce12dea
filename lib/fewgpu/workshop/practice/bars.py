"""Numbers, drawn as text."""

from collections.abc import Iterable

WIDTH = 50


def bars(rows: Iterable[tuple[str, float, str]]) -> str:
    """A line a row: its name, a bar as long as its number is large, and what is said about it."""
    rows = list(rows)
    most = max((value for _, value, _ in rows), default=0) or 1
    longest = max((len(name) for name, *_ in rows), default=0)
    return '\n'.join(f'{name:<{longest}} {"#" * round(value * WIDTH / most)} {told}' for name, value, told in rows)
