"""`./workshop.py watch`: save an exercise, and it is checked."""

import _thread
import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import watchfiles
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from fewgpu.workshop.exercise import Exercise, all_exercises, real
from fewgpu.workshop.runner.choose import NUMBER, chosen_or_next, console, leave_nothing_behind, next_one
from fewgpu.workshop.runner.graded import NotGraded, attempt
from fewgpu.workshop.runner.hint import show_hint
from fewgpu.workshop.runner.keys import keys
from fewgpu.workshop.runner.progress import Progress
from fewgpu.workshop.runner.show import line_of
from fewgpu.workshop.runner.words import near

QUIET = 200        # milliseconds without a change: then a file counts as saved
QUIT, NEXT, HINT = 'q', 'n', 'h'


def watch(
    exercise: Annotated[str | None, typer.Argument(
        metavar='[NN]', help=f'{NUMBER} Then the one that you save.')] = None,
    poll: Annotated[bool, typer.Option(
        '--poll', help='Look again and again: for network folders, which do not tell when a file is saved.')] = False,
) -> None:
    """Check an exercise whenever its file is saved.

    In a terminal: h shows a hint, n goes to the next exercise, q ends (and so does Ctrl-C).
    """
    out, first = console(), chosen_or_next(exercise)
    leave_nothing_behind()
    try:
        _Watch(out, first, follow=exercise is None).go_on(poll)
    except KeyboardInterrupt:
        out.print('Stopped.')
        raise typer.Exit(130) from None


class _Watch:
    """`follow`: any exercise that is saved becomes the one that is watched."""

    def __init__(self, out: Console, exercise: Exercise, *, follow: bool) -> None:
        self._out, self._exercise, self._follow = out, exercise, follow
        self._events: queue.SimpleQueue[Path | str] = queue.SimpleQueue()   # files that were saved, and keys
        self._saved, self._quit = threading.Event(), False
        self._busy, self._lock = False, threading.Lock()   # is a check running?

    def go_on(self, poll: bool) -> None:
        """Until somebody ends it."""
        try:
            with self._files(poll), keys(self._press) as has_keys:
                self._has_keys = has_keys
                self._check()
                while not self._quit:
                    with contextlib.suppress(queue.Empty):
                        self._act_on(self._events.get(timeout=0.2))   # so that Ctrl-C is heard on every system
        except KeyboardInterrupt:
            if not self._quit:
                raise

    def _press(self, key: str) -> None:
        """Called by the thread that reads keys."""
        self._events.put(key)
        if key == QUIT:
            self._quit = True
            self._interrupt()

    def _interrupt(self) -> None:
        """End the check that is running, if one is."""
        with self._lock:
            if self._busy:
                _thread.interrupt_main()

    def _act_on(self, event: Path | str) -> None:
        if event == HINT:
            self._out.print()
            show_hint(self._out, self._exercise)
            self._say_keys()
        elif event == NEXT:
            self._go_to_next()
        elif isinstance(event, Path):
            self._changed(event)

    def _changed(self, file: Path) -> None:
        by_file = {real(exercise.file): exercise for exercise in all_exercises()}
        saved = by_file.get(file)
        if saved and (self._follow or saved == self._exercise):
            self._exercise = saved
            self._check()

    def _go_to_next(self) -> None:
        exercise = next_one(all_exercises(), Progress.load(self._exercise.root), self._exercise)
        if exercise is None:
            self._out.print('There is no other exercise that is not done.')
            return
        self._exercise = exercise
        self._check()

    def _check(self) -> None:
        self._saved.clear()
        if self._out.is_terminal:
            self._out.clear()
        else:
            self._out.print()
        try:
            try:
                self._busy = True
                attempt(self._out, self._exercise)
            except NotGraded:   # the file is gone, for a moment or for good: it was said
                pass
            finally:
                with self._lock:
                    self._busy = False
        except KeyboardInterrupt:
            self._busy = False
            if self._quit or not self._saved.is_set():
                raise
            self._out.print('It was saved again: starting anew.')   # the event for it is in the queue
            return
        self._say_keys()

    def _say_keys(self) -> None:
        where = near(self._exercise.file, self._exercise.root)
        how = 'h hint, n next, q quit' if self._has_keys else 'Ctrl-C ends'
        self._out.print()
        self._out.print(Rule(Text(f'waiting for {where} to be saved ({how})', 'dim'), style='dim', align='left',
                             characters=line_of(self._out)))

    @contextlib.contextmanager
    def _files(self, poll: bool) -> Iterator[None]:
        """Inside, a thread notes which files of the folder are saved."""
        over, folder = threading.Event(), real(self._exercise.file.parent)

        def counts(change: watchfiles.Change, path: str) -> bool:
            return path.endswith('.py') and change != watchfiles.Change.deleted

        def note() -> None:
            for changes in watchfiles.watch(folder, watch_filter=counts, step=QUIET, stop_event=over, recursive=False,
                                            raise_interrupt=False, rust_timeout=500, force_polling=poll or None):
                for path in sorted({real(path) for _, path in changes}):
                    if path == real(self._exercise.file):
                        self._saved.set()
                    self._events.put(path)
                    if self._saved.is_set():
                        self._interrupt()

        watcher = threading.Thread(target=note, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join(timeout=2)
