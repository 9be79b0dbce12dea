"""The process that runs a learner's file: `python -m fewgpu.workshop.grading.child NAME FILE SEED FOLDER PARENT`.

It writes a line (see `channel`) into FOLDER/outcomes for every check that begins and every one that ends, so that
whoever started it knows how far it came, however it ends. The learner's file runs here, too: what it may not reach is
in `reach` and `guard`. When it is sent SIGABRT, or crashes, it leaves the lines where it was
in FOLDER/stuck.
"""

import ctypes
import faulthandler
import importlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from fewgpu.workshop.grading.channel import take_key, writer
from fewgpu.workshop.grading.forbid import forbid, forbid_processes, hide_graders
from fewgpu.workshop.grading.grade import FILE, LOAD
from fewgpu.workshop.grading.grader import GIGABYTES, Check, Failure, checks_of
from fewgpu.workshop.grading.guard import watch
from fewgpu.workshop.grading.known import KNOWN
from fewgpu.workshop.grading.patience import AT_MOST
from fewgpu.workshop.grading.plain import know_all_types
from fewgpu.workshop.grading.reach import keep_apart
from fewgpu.workshop.grading.surroundings import surroundings
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Outcome
from fewgpu.workshop.grading.work import Work

MOST_TEXT = 4000   # characters of what is said about a check


def main(name: str, file: str, seed: str, folder: str, parent: str) -> NoReturn:
    _end_with(int(parent))
    torch.set_num_threads(1)
    key = take_key(Path(folder))
    grader = importlib.import_module(f'fewgpu.workshop.graders.{name}')
    checks, sentences = checks_of(grader), {**KNOWN, **grader.MISCONCEPTIONS}
    with open(Path(folder, 'outcomes'), 'wb') as out, open(Path(folder, 'stuck'), 'w') as stuck:
        faulthandler.enable(stuck)
        limit = LOAD + AT_MOST * sum(check.seconds for check in checks)
        faulthandler.dump_traceback_later(limit, exit=True, file=stuck)   # should nobody watch any more
        child = _Child(checks, sentences, int(seed), writer(out, key))
        del key
        try:
            child.grade(Path(file).resolve(), Path(folder).resolve(), getattr(grader, 'FORBIDDEN', ()))
        except BaseException:   # of the kit: whatever the learner's file raises has become an outcome
            child.write({'fault': traceback.format_exc()})
    sys.stdout.flush()
    os._exit(0)   # whatever threads the file has left behind


class _Child:
    def __init__(self, checks: list[Check], sentences: dict[str, str], seed: int,
                 write: Callable[[dict[str, Any]], None]) -> None:
        self._checks, self._sentences, self._seed, self.write = checks, sentences, seed, write

    def grade(self, file: Path, folder: Path, forbidden: tuple[str, ...]) -> None:
        @cache   # it is asked of a few files, at every call of what is forbidden
        def is_learners(name: str) -> bool:
            return Path(name).parent == file.parent

        self.write({'checks': [[check.id, check.title, check.points, check.seconds] for check in self._checks]})
        put_back = surroundings()
        forbid(forbidden, is_learners)
        forbid_processes(is_learners)
        _limit_memory()
        know_all_types()
        changed, changed_nearby, restore = watch()
        hide_graders()
        tried = keep_apart(file, folder, is_learners)
        self.write({'starts': 'file'})
        outcome, is_clean = Outcome(*FILE[:3], PASSED), partial(self._is_clean, changed, restore, tried)
        try:
            work = Work(file, changed_nearby)
        except Failure as failure:
            self._failed(outcome, failure)
        put_back()   # the built-in functions first: a file may have its own, until the checks begin
        if not is_clean(outcome) or not outcome.passed:
            return self.write(asdict(outcome))
        passed: set[str] = set()
        for check in self._checks:
            put_back()
            outcome = Outcome(check.id, check.title, check.points, PASSED)
            try:
                self._run(check, outcome, work, passed)
            except BaseException:   # of the kit, unless somebody has exchanged a part of it
                if is_clean(outcome):
                    raise
            if is_clean(outcome) and outcome.passed:
                passed.add(check.id)
            put_back()
            self.write(asdict(outcome))
        self.write({'ends': True})

    def _is_clean(self, changed: Callable[[], str], restore: Callable[[], None], tried: list[str],
                  outcome: Outcome) -> bool:
        """Did the file leave alone what is not its own? If not, the check has failed, and all is as before again."""
        what = changed() or (tried[0] if tried else '')
        if what:
            restore()
            if outcome.misconception != 'tampers':
                outcome.figures = {}
                self._failed(outcome, Failure(f'({what})', misconception='tampers', lines=outcome.lines))
            tried.clear()
        return not what

    def _run(self, check: Check, outcome: Outcome, work: Work, passed: set[str]) -> None:
        if not passed.issuperset(check.after):
            outcome.status, outcome.message = BLOCKED, self._waits_for(check, passed)
            return
        self.write({'starts': check.id})
        started = time.perf_counter()
        torch.manual_seed(self._seed)
        try:
            outcome.figures = check.run(work, random.Random(f'{self._seed} {check.id}')) or {}
        except BaseException as error:
            self._failed(outcome, work.explain(error))
        outcome.seconds = time.perf_counter() - started

    def _waits_for(self, check: Check, passed: set[str]) -> str:
        numbers = [str(number) for number, each in enumerate(self._checks, 1) if each.id in set(check.after) - passed]
        listed = ' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))
        return f'It builds upon check{"s" * (len(numbers) > 1)} {listed}.'

    def _failed(self, outcome: Outcome, failure: Failure) -> Outcome:
        outcome.status, outcome.misconception = FAILED, failure.misconception
        sentence = _sentence(self._sentences, failure.misconception)
        outcome.message = ' '.join(filter(None, [sentence, failure.message]))[:MOST_TEXT]
        outcome.message = outcome.message or 'The answer is not the right one.'
        outcome.case, outcome.lines, outcome.picture, outcome.svg = (
            failure.case[:MOST_TEXT], failure.lines, failure.picture, failure.svg)
        return outcome


def _sentence(sentences: dict[str, str], misconception: str) -> str:
    """A misconception as a sentence of its own. Raises KeyError for one that no grader lists."""
    text = sentences[misconception] if misconception else ''
    return text[:1].upper() + text[1:] + ('' if not text or text[-1] in '.?!' else '.')


def _end_with(parent: int) -> None:
    """On Linux: whoever kills the process that waits for us, a notebook kernel say, ends us too.

    Elsewhere alarms do.
    """
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)   # PR_SET_PDEATHSIG
        if os.getppid() != parent:                   # it was killed before
            os._exit(1)


def _limit_memory() -> None:
    """Of what this process may allocate from now on; where the system does not know such limits, there is none."""
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = int(Path('/proc/self/statm').read_text().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    limit = used + int(GIGABYTES * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == '__main__':
    main(*sys.argv[1:])
