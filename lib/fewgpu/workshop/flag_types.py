"""Numbers as flags of scripts: a type of argparse's gives the value, or says what is wrong with the text."""

import argparse
import re
from collections.abc import Callable

_MOST = 10**9


def whole(least: int, most: int = _MOST) -> Callable[[str], int]:
    """A type of whole numbers within these bounds, which are part of it."""
    def read(text: str) -> int:
        if not re.fullmatch(r'[+-]?\d{1,18}', text, re.ASCII) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f'must be a whole number, {least} or more'
                                             f'{"" if most == _MOST else f" and at most {most}"}, not {text!r}')
        return int(text)
    return read


count = whole(least=1)


def number(*, above: float | None = None, least: float | None = None) -> Callable[[str], float]:
    """A type of finite numbers that are above a bound, or at least another."""
    wanted = f'above {above:g}' if above is not None else f'{least:g} or more'

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float('nan')
        in_range = value > above if above is not None else value >= least
        if not in_range or value == float('inf'):
            raise argparse.ArgumentTypeError(f'must be a number, {wanted}, not {text!r}')
        return value
    return read
