"""`./workshop.py reset 05`: start an exercise anew."""

from typing import Annotated

import typer
from rich.text import Text

from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.choose import chosen, console
from fewgpu.workshop.runner.fresh import fresh, keep_copy
from fewgpu.workshop.runner.whole import write


def reset(exercise: Annotated[str, typer.Argument(metavar='NN', help='Its number, as in 05.')]) -> None:
    """Start an exercise anew; a copy of your file is kept beside it. Your points stay."""
    asked_for, out = chosen(exercise), console()
    file, text = asked_for.file, fresh(asked_for)
    name = words.near(file, asked_for.root)
    try:
        if file.exists() and not file.is_file() or file.is_symlink() and not file.exists():
            raise OSError('it is no file, but a folder, a device or a link to nothing: move it away first')
        if not file.exists():
            write(file, text)
            out.print(Text(f'{name} is there again.'))
        elif file.read_bytes().replace(b'\r\n', b'\n') == text.encode():
            out.print(Text(f'{name} is as it was in the beginning: there is nothing to reset.'))
        else:
            copy = keep_copy(file)
            write(file, text)
            out.print(Text(f'{name} is as it was in the beginning. Yours is kept as '
                           f'{words.near(copy, asked_for.root)}.'))
    except OSError as error:
        out.print(Text(f'{name} could not be reset, and is as it was: {words.why(error)}.'))
        raise typer.Exit(1) from None
