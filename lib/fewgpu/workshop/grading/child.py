"""The process that runs a learner's file: `python -m fewgpu.workshop.grading.child NAME FILE SEED FOLDER PARENT`.

It writes a line of JSON into FOLDER/outcomes for every check that begins and every one that ends, so that whoever
started it knows how far it came, however it ends. When it is sent SIGABRT, or crashes, it leaves the lines where it was
in FOLDER/stuck.
"""

import ctypes
import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch

from fewgpu.workshop.grading.forbid import forbid, forbid_processes
from fewgpu.workshop.grading.grade import FILE, LOAD
from fewgpu.workshop.grading.grader import GIGABYTES, Check, Failure, checks_of
from fewgpu.workshop.grading.known import KNOWN
from fewgpu.workshop.grading.patience import AT_MOST
from fewgpu.workshop.grading.surroundings import surroundings
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Outcome
from fewgpu.workshop.grading.work import Work

MOST_TEXT = 4000   # characters of what is said about a check


def main(name: str, file: str, seed: str, folder: str, parent: str) -> NoReturn:
    _end_with(int(parent))
    torch.set_num_threads(1)
    grader = importlib.import_module(f'fewgpu.workshop.graders.{name}')
    checks, sentences = checks_of(grader), {**KNOWN, **grader.MISCONCEPTIONS}
    with open(Path(folder, 'outcomes'), 'w', encoding='utf-8') as out, open(Path(folder, 'stuck'), 'w') as stuck:
        faulthandler.enable(stuck)
        limit = LOAD + AT_MOST * sum(check.seconds for check in checks)
        faulthandler.dump_traceback_later(limit, exit=True, file=stuck)   # should nobody watch any more
        child = _Child(checks, sentences, int(seed), out)
        try:
            child.grade(Path(file).resolve(), getattr(grader, 'FORBIDDEN', ()))
        except BaseException:   # of the kit: whatever the learner's file raises has become an outcome
            child.write({'fault': traceback.format_exc()})
    sys.stdout.flush()
    os._exit(0)   # whatever threads the file has left behind


class _Child:
    def __init__(self, checks: list[Check], sentences: dict[str, str], seed: int, out: TextIO) -> None:
        self._checks, self._sentences, self._seed, self._out = checks, sentences, seed, out

    def grade(self, file: Path, forbidden: tuple[str, ...]) -> None:
        def is_learners(name: str) -> bool:
            return Path(name).parent == file.parent

        self.write({'checks': [[check.id, check.title, check.points, check.seconds] for check in self._checks]})
        put_back = surroundings()
        forbid(forbidden, is_learners)
        forbid_processes(is_learners)
        _limit_memory()
        self.write({'starts': 'file'})
        try:
            work = Work(file)
        except Failure as failure:
            return self.write(asdict(self._failed(Outcome(*FILE[:3]), failure)))
        passed: set[str] = set()
        for check in self._checks:
            put_back()
            outcome = self._run(check, work, passed)
            put_back()
            if outcome.passed:
                passed.add(check.id)
            self.write(asdict(outcome))
        self.write({'ends': True})

    def _run(self, check: Check, work: Work, passed: set[str]) -> Outcome:
        outcome = Outcome(check.id, check.title, check.points, PASSED)
        if not passed.issuperset(check.after):
            outcome.status, outcome.message = BLOCKED, self._waits_for(check, passed)
            return outcome
        self.write({'starts': check.id})
        started = time.perf_counter()
        torch.manual_seed(self._seed)
        try:
            outcome.figures = check.run(work, random.Random(f'{self._seed} {check.id}')) or {}
        except BaseException as error:
            self._failed(outcome, work.explain(error))
        outcome.seconds = time.perf_counter() - started
        return outcome

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

    def write(self, data: dict[str, Any]) -> None:
        self._out.write(json.dumps(data) + '\n')
        self._out.flush()


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
