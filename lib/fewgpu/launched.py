"""What a rank that `fewgpu.launch` started runs: `python -m fewgpu.launched FOLDER`.

The folder holds the call (`call`: a function and its arguments) and the file through which the
ranks find each other; the rank leaves `result-RANK` or `error-RANK` in it.
"""

import atexit
import contextlib
import faulthandler
import io
import linecache
import os
import pickle
import select
import shutil
import signal
import sys
import threading
import traceback
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle

from fewgpu.own_files import read_own, verify_private, write_own


def main(folder: Path) -> None:
    """Carry out the call, unless the process that launched it is gone first."""
    atexit.register(_end)   # the first to be registered is the last to run
    rank = int(os.environ['RANK'])
    _end_with_parent(folder)   # before torch is imported, which takes seconds
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)   # see launch: show_stack
    try:
        verify_private(folder)
        _join(folder, rank, int(os.environ['WORLD_SIZE']))
        cells, fn, args = pickle.loads(read_own(folder / 'call'))
        linecache.cache.update(cells)
        _leave(folder / f'result-{rank}', _pickled(fn(*args)))
    except BaseException as error:
        _leave(folder / f'error-{rank}', _pickled_error(error))
        sys.stdout.flush()
        os._exit(1)   # whatever the others, or libraries, would wait for


def _end() -> None:
    """End here, when all that others registered has run: a thread of gloo that lets go of a tensor
    while Python takes itself down would abort the process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _join(folder: Path, rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist
    from fewgpu.group import backend_of
    backend, own_gpu = backend_of(rank, ranks)
    if own_gpu is not None:
        torch.cuda.set_device(own_gpu)
    elif not torch.cuda.is_available():
        torch.get_num_threads()   # or torch's lazy set-up would undo the next line
        torch.set_num_threads(1)
    # Nothing here may give up waiting before the caller does: a slow step is no error.
    dist.init_process_group(backend, store=dist.FileStore(str(folder / 'store'), ranks), rank=rank,
                            world_size=ranks, timeout=timedelta(days=7), device_id=own_gpu)


def _leave(file: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    unfinished = file.with_suffix('.part')
    write_own(unfinished, content)
    unfinished.rename(file)


def _pickled(result: Any) -> bytes:
    try:
        return dumps(result)
    except Exception as error:
        raise TypeError(f'the result, a {type(result).__name__}, cannot be sent to the process that '
                        f'launched the ranks ({error}): return tensors, numbers or text') from None


def _pickled_error(error: BaseException) -> bytes:
    """The exception with the text of its traceback. One that does not survive pickling becomes a
    RuntimeError that carries its name."""
    trace = traceback.TracebackException.from_exception(error)
    own = [frame for frame in trace.stack if frame.filename != __file__]
    trace.stack = traceback.StackSummary.from_list(own or trace.stack)
    text = ''.join(trace.format()).rstrip()
    with contextlib.suppress(Exception):
        pickled = dumps((error, text))
        if type(pickle.loads(pickled)[0]) is type(error):
            return pickled
    return dumps((RuntimeError(f'{type(error).__name__}: {error}'), text))


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that keeps the file names of functions, by which a traceback finds their lines."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.CodeType):
            return _code, (*self.dispatch_table[types.CodeType](value), value.co_filename)
        return super().reducer_override(value)


def _code(make: Any, args: tuple, filename: str) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def dumps(value: Any) -> bytes:
    """`value` for `pickle.loads` in another process, functions of a notebook cell included."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _end_with_parent(folder: Path) -> None:
    """Take the pipe away from standard input, and end this process when the pipe does."""
    parent, pipe = os.getppid(), os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        # Another process that the parent forked may hold the pipe open: look who is our parent.
        while os.getppid() == parent and not select.select([pipe], [], [], 1.0)[0]:
            pass
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(os.getpgid(0), signal.SIGKILL)   # with the processes that this one started

    threading.Thread(target=watch, daemon=True).start()


if __name__ == '__main__':
    from fewgpu.launched import main   # whose functions can be pickled by their names
    main(Path(sys.argv[1]))
