"""How a script ends: what a learner must know in a sentence or two, and no pages of traceback."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_LIBRARY = Path(__file__).resolve().parents[1]


def run(main: Callable[[], None]) -> None:
    """Run a script's `main`; an error that the library explains is printed as a sentence.

    Out of memory, or an OSError or ValueError that fewgpu raised: exit code 1. Ctrl-C: 130. Any
    other exception comes with its traceback.
    """
    import torch

    try:
        main()
    except torch.OutOfMemoryError as error:
        message = out_of_memory(error)
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):   # `script | head -1`: nobody reads on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        frames = traceback.extract_tb(error.__traceback__)
        ours = [_LIBRARY in Path(frame.filename).resolve().parents for frame in frames]
        # A full disk is noticed below the library; a ValueError from there is not one of its own.
        if not (any(ours[1:]) if isinstance(error, OSError) else ours[-1]):
            raise
        own = frames[ours.index(True, 1) - 1]   # frame 0 is this function
        message = f'{own.filename}, line {own.lineno}: {own.line}\n{error}'
    except KeyboardInterrupt:
        print('\nStopped.', file=sys.stderr)
        sys.exit(130)
    else:
        return
    print(message, file=sys.stderr)   # by now the stack is unwound, and a progress bar gone
    sys.exit(1)


def out_of_memory(error: BaseException) -> str:
    """The error in a line, and where in a pipeline it was. (A GPU's allocator says much more.)"""
    first = str(error).split(' Including non-PyTorch memory')[0].split(' See documentation')[0]
    if 'smaller batch' not in first:
        first = f'{first} Use a smaller batch, or in a pipeline more micro-batches, recompute or more devices.'
    return '\n'.join([first, *(f'({note})' for note in getattr(error, '__notes__', []))])
