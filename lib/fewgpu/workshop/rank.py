"""What each rank of a job runs: `python -m fewgpu.workshop.rank FOLDER PROGRAM ARGUMENT...`.

The program runs as it would alone, but for this: what it prints goes to FOLDER/rank-N.log; TERM and USR1 are noted for
its `fewgpu.stopping.Stopping`, from the first moment on; what it raises is written down in FOLDER, too, and the job's
last lines show it (see `fewgpu.workshop.failed`); and it ends with the process that started it.
"""

import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from fewgpu import stopping
from fewgpu.workshop.failed import Failed, node_here

_LOOK = 1.0   # seconds between two looks whether the parent is there


def log_of(folder: Path, rank: int) -> Path:
    """Where a rank's output is."""
    return folder / f'rank-{rank}.log'


def pid_of(folder: Path, rank: int) -> Path:
    """The file that tells the process of a rank, once signals to it are safe."""
    return folder / f'rank-{rank}.pid'


def main(folder: Path, program: str, arguments: list[str]) -> None:
    """Run the program as this rank; exits with its status, 1 if it raised."""
    stopping.listen()
    rank = int(os.environ['RANK'])
    _end_with_parent()
    _into(log_of(folder, rank))
    pid_of(folder, rank).write_text(str(os.getpid()), encoding='utf-8')
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)   # as python PROGRAM has it
    try:
        runpy.run_path(program, run_name='__main__')
        status = 0
    except SystemExit as end:
        status = _status_of(end)
        if status:
            said = _last_words(end, log_of(folder, rank))
            Failed(rank, node_here(), status, f'it ended with exit status {status}{said}').leave(folder)
    except BaseException as error:
        status, word = 1, Failed.by(error, rank)
        word.leave(folder)   # first this: others fail with us, and then we may be killed
        print(word.why if word.is_of_another else _traced(error), file=sys.stderr)
    for number in stopping.SIGNALS:   # Slurm tells a job to end more than once; Python gives its handlers back
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    pid_of(folder, rank).unlink(missing_ok=True)
    if status:
        os._exit(status)   # whatever the others, or libraries, would wait for


def _status_of(end: SystemExit) -> int:
    """As Python has it: a text is printed, and is a failure."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _last_words(end: SystemExit, log: Path) -> str:
    """Why it has ended itself, if it said so: by a text, or (argparse, with 2) in its last line."""
    if isinstance(end.code, str):
        return f': {end.code}'
    sys.stderr.flush()
    last = log.read_text(encoding='utf-8', errors='replace').rstrip().rpartition('\n')[2]
    return f': {last}' if end.code == 2 else ''


def _traced(error: BaseException) -> str:
    """The traceback from the program on."""
    trace = traceback.TracebackException.from_exception(error)
    own = [frame for frame in trace.stack if frame.filename not in (__file__, runpy.__file__, '<frozen runpy>')]
    trace.stack = traceback.StackSummary.from_list(own or trace.stack)
    return ''.join(trace.format()).rstrip()


def _into(file: Path) -> None:
    """Everything that this process prints, and its children, goes to the end of the file, line by line."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(out, stream)
    os.close(out)
    sys.stdout.reconfigure(line_buffering=True, encoding='utf-8')
    sys.stderr.reconfigure(encoding='utf-8')


def _end_with_parent() -> None:
    """A node's torchrun may be killed, and Slurm might not know that this process is its child."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
