"""Whatever a learner's file does, a verdict comes out: a sentence, the learner's own line, and no process left."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fewgpu.workshop.exercise import all_exercises, find
from fewgpu.workshop.grading.forbid import HandedBack, _named, forbid
from fewgpu.workshop.grading.grade import KEPT_FIRST, KEPT_LAST, GraderError, grade
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, Verdict
from tests.forked import quick_popen

EXERCISE = find(1)

BODIES = {   # of `sizes`: what it does, the misconception, and what the line of the learner's has in it
    'an endless loop': ('while True:\n        pass', 'too-slow', r'while|pass'),
    'a loop inside C, which holds the lock of Python': (
        "import re\n    re.match(r'(a+)+$', 'a' * 40 + 'b')", 'too-slow', 're.match'),
    'a wait for ever': ('import threading\n    threading.Event().wait()', 'too-slow', 'wait'),
    'sys.exit': ('import sys\n    sys.exit(0)', 'exits', 'sys.exit'),
    'os._exit': ('import os\n    os._exit(0)', 'exits', ''),
    'a signal to itself': ('import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)', 'killed', ''),
    'a crash': ('import ctypes\n    ctypes.string_at(0)', 'crashed', 'string_at'),
    'a fork': ('import os\n    os.fork()', 'starts-processes', 'os.fork'),
    'a shell': ("import os\n    os.system('true')", 'starts-processes', 'os.system'),
    'a process': (
        'import multiprocessing\n    multiprocessing.Process(target=print).start()', 'starts-processes', 'start()'),
    'a process that hides what went wrong': (
        "import subprocess\n    try:\n        subprocess.run(['true'])\n    except Exception:\n        return [rows]",
        'starts-processes', 'subprocess.run'),
    'a process from a thread': (
        'import concurrent.futures, subprocess\n'
        "    return concurrent.futures.ThreadPoolExecutor().submit(subprocess.run, ['true']).result()",
        'starts-processes', 'submit'),
    'megabytes of prints': ("while True:\n        print('x' * 1000)", 'prints-too-much', 'while|print'),
    'a large list': (
        "kept = []\n    while True:\n        kept.append('x' * 10**7 + str(len(kept)))", 'too-much-memory', 'append'),
    'a large tensor': ('return [torch.ones(10**10).sum()]', 'too-much-memory', 'torch.ones'),
    'endless recursion': ('return sizes(rows, chunks)', 'raises', 'return sizes'),
    'an exception': ('return 1 / 0', 'raises', '1 / 0'),
    'a wrong name': ('return row', 'raises', 'return row'),
    'a number': ('return 7', '', 'def sizes'),
    'nothing': ('rows + chunks', 'returns-nothing', 'def sizes'),
    'only a docstring': ('pass', 'unsolved', 'def sizes'),
    'the kit': (
        'from fewgpu.microbatch import sizes\n    return sizes(rows, chunks)', 'handed-back', 'return sizes'),
    'the kit, by a detour': ("import importlib\n    kit = importlib.import_module('fewgpu.' + 'microbatch')\n"
                             "    return list(map(getattr(kit, 'si' + 'zes'), [rows], [chunks]))[0]", 'handed-back', 'map'),
    'the kit, from a thread': (
        'import fewgpu.microbatch, concurrent.futures\n'
        '    return concurrent.futures.ThreadPoolExecutor().submit(fewgpu.microbatch.sizes, rows, chunks).result()',
        'handed-back', 'submit'),
    'the kit, by exec': (
        "names = {}\n    exec('from fewgpu.microbatch import sizes\\nx = sizes(' + f'{rows}, {chunks})', names)\n"
        "    return names['x']", 'handed-back', 'exec'),
    'an exception that cannot be told': (
        "class Odd(Exception):\n        def __str__(self):\n            raise ValueError\n    raise Odd", 'raises', 'raise Odd'),
}
FILES = {   # what stands before everything else
    'an import that hangs': ('import time\ntime.sleep(10000)', 'too-slow', 'time.sleep'),
    'an import that is not there': ('import torchvisoin', 'does-not-load', 'torchvisoin'),
    'a syntax error': ('def half(x)\n    return x', 'syntax-error', 'def half'),
    'tabs and spaces': ('if True:\n\tx = 1\n        y = 2', 'syntax-error', 'y = 2'),
    'a question': ("input('Your name? ')", 'does-not-load', 'input'),
    'an exit': ('exit()', 'exits', 'exit'),
    'an end': ('import os\nos._exit(7)', 'exits', ''),
}


def solved(body: str | None = None, before: str = '') -> str:
    """The solution, with another body of `sizes`, or something before everything else."""
    text = EXERCISE.solution.read_text(encoding='utf-8')
    if body is not None:
        text = re.sub(r'# STEP 1:.*?# END', lambda _: body, text, count=1, flags=re.DOTALL)
    return f'{before}\n{text}'


def graded(text: str, folder: Path, seed: int | None = None, popen: type = subprocess.Popen) -> Verdict:
    file = folder / '01_microbatch.py'
    file.write_text(text, encoding='utf-8')
    return grade(EXERCISE, file, seed=seed, popen=popen)


def children() -> list[str]:
    """Processes of a session that one of ours has begun: those that grade, and whatever a graded file has started."""
    listed = subprocess.run(['ps', '-eo', 'pid,ppid,args'], capture_output=True, text=True).stdout.splitlines()
    running = [line.split(maxsplit=2) for line in listed if 'grading.child' in line and 'defunct' not in line]
    copied = {pid for pid, parent, command in running if 'forkserver' in command and parent in (str(os.getpid()), '1')}
    parents = {str(os.getpid()), '1', *copied}   # of tests/forked.py
    return [command for pid, parent, command in running if parent in parents and pid not in copied]


@pytest.mark.slow
@pytest.mark.parametrize('name', BODIES)
@pytest.mark.parametrize('popen', (subprocess.Popen, quick_popen), ids=('started', 'forked'))   # as the bank's are
def test_function_that_misbehaves_ends_in_a_sentence(name: str, popen: type, tmp_path: Path) -> None:
    body, misconception, where = BODIES[name]
    verdict = graded(solved(body), tmp_path, popen=popen)
    failure = verdict.first_failure
    assert failure.id == 'sizes' and failure.misconception == misconception and failure.message
    assert bool(failure.lines) == bool(where)
    assert not where or re.search(where, failure.lines[-1].text)
    assert verdict.file == str(tmp_path / '01_microbatch.py') and not children()


@pytest.mark.slow
@pytest.mark.parametrize('name', FILES)
def test_file_that_does_not_load_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    before, misconception, where = FILES[name]
    verdict = graded(solved(before=before), tmp_path)
    failure, *rest = verdict.outcomes
    assert failure.id == 'file' and failure.misconception == misconception and failure.message
    assert not where or re.search(where, failure.lines[-1].text)
    assert [outcome.status for outcome in rest] == [BLOCKED] * 5 and verdict.earned == 0 and not children()


def test_other_steps_keep_their_points_when_one_is_wrong(tmp_path: Path) -> None:
    verdict = graded(solved('return [rows]'), tmp_path)
    assert [outcome.id for outcome in verdict.outcomes if outcome.status == FAILED] == ['sizes']
    assert 0 < verdict.earned < verdict.points == 10


def test_same_seed_tries_the_same_cases_and_a_verdict_survives_json(tmp_path: Path) -> None:
    wrong = solved('return [rows - 1, 1] if rows > 40 else [rows // min(rows, chunks) + (i < rows % min(rows, chunks)) '
                   'for i in range(min(rows, chunks))]')
    one, again, other = (graded(wrong, tmp_path, seed) for seed in (1, 1, 2))
    assert one.first_failure.case == again.first_failure.case != other.first_failure.case
    read = Verdict.from_json(json.loads(json.dumps(one.to_json())))
    assert read == one


def test_missing_function_is_named(tmp_path: Path) -> None:
    verdict = graded(solved().replace('def gather', 'def gather_all'), tmp_path)
    assert verdict.first_failure.misconception == 'missing-function'
    assert '`gather`' in verdict.first_failure.message


def test_importing_what_is_forbidden_is_no_fault_while_it_is_not_called(tmp_path: Path) -> None:
    assert graded(solved(before='from fewgpu.microbatch import scatter as theirs'), tmp_path).passed


def test_prints_are_kept_from_both_ends(tmp_path: Path) -> None:
    verdict = graded(solved(before="print('first')\nfor i in range(9999): print('again')\nprint('last')"), tmp_path)
    assert verdict.passed
    assert verdict.printed.startswith('first') and verdict.printed.endswith('last\n')
    assert len(verdict.printed) < KEPT_FIRST + KEPT_LAST + 100


def test_files_beside_the_learners_can_be_imported_and_their_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text('def divide(rows):\n    return rows / 0\n')
    failure = graded(solved('import mine\n    return mine.divide(rows)'), tmp_path).first_failure
    assert failure.misconception == 'raises'
    assert [(line.file, line.text.strip()) for line in failure.lines] == [
        ('', 'return mine.divide(rows)'), ('mine.py', 'return rows / 0')]


def test_nothing_is_written_beside_the_learners_file(tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text('x = 1\n')
    graded(solved(before='import mine'), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['01_microbatch.py', 'mine.py']


@pytest.mark.skipif(os.name == 'nt', reason='processes are interrupted in another way on Windows')
def test_interrupt_ends_the_process_that_grades(tmp_path: Path) -> None:
    file = tmp_path / '01_microbatch.py'
    started = tmp_path / 'started'
    hangs = f'open({str(started)!r}, "w").close()\nimport time\ntime.sleep(1000)'
    file.write_text(solved(before=hangs), encoding='utf-8')
    script = ('from pathlib import Path\nfrom fewgpu.workshop.exercise import find\n'
              f'from fewgpu.workshop.grading.grade import grade\ngrade(find(1), Path({str(file)!r}))')
    environment = {**os.environ, 'PYTHONPATH': str(Path(__file__).resolve().parents[1] / 'lib')}
    process = subprocess.Popen([sys.executable, '-c', script], env=environment, stderr=subprocess.DEVNULL)
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(2)
    assert process.wait(timeout=60) != 0
    listed = subprocess.run(['ps', '-eo', 'args'], capture_output=True, text=True).stdout
    assert str(file) not in listed


RIGHT_AFTER_ALL = {   # what is odd about a file that is right
    'a byte order mark': lambda text: '\ufeff' + text,
    'another encoding that it names': lambda text: f'# coding: latin-1\n{text}',
    'a stub of an earlier attempt': lambda text: text.replace('def sizes(', 'def sizes(rows, chunks):\n    pass\n\n\ndef sizes('),
    'a lambda in place of a stub': lambda text: text.replace(
        '\ndef scatter(', '\nkept = sizes\n\n\ndef sizes(rows, chunks):\n    pass\n\n\n'
                          'sizes = lambda rows, chunks: kept(rows, chunks)\n\n\ndef scatter(', 1),
    'no gradients by default': lambda text: f'import torch\ntorch.set_grad_enabled(False)\n{text}',
    'another device by default': lambda text: f"import torch\ntorch.set_default_device('meta')\n{text}",
    'other built-in functions': lambda text: f'import builtins\nbuiltins.sorted = builtins.all = None\n{text}',
    'no place for modules': lambda text: f'{text}\nimport sys\nsys.path.clear()\n',
    'a shallow recursion': lambda text: f'import sys\nsys.setrecursionlimit(70)\n{text}',
    'line ends of Windows': lambda text: text.replace('\n', '\r\n'),
}


@pytest.mark.parametrize('oddity', RIGHT_AFTER_ALL)
def test_odd_file_that_is_right_passes(oddity: str, tmp_path: Path) -> None:
    file = tmp_path / '01_microbatch.py'
    text = RIGHT_AFTER_ALL[oddity](EXERCISE.solution.read_text(encoding='utf-8'))
    file.write_bytes(text.encode('latin-1' if 'latin-1' in text else 'utf-8'))
    verdict = grade(EXERCISE, file)
    assert verdict.passed, [(outcome.message, outcome.case) for outcome in verdict.failures]


@pytest.mark.parametrize('content', [b'\x00\x01\x02', 'x = "é"'.encode('utf-16'), b'x = "\xe9"'])
def test_file_that_is_no_text_is_told_how_to_be_saved(content: bytes, tmp_path: Path) -> None:
    (tmp_path / '01_microbatch.py').write_bytes(content)
    failure = grade(EXERCISE, tmp_path / '01_microbatch.py').first_failure
    assert failure.misconception == 'syntax-error' and 'UTF-8' in failure.message


def test_what_is_said_about_a_huge_exception_is_short(tmp_path: Path) -> None:
    verdict = graded(solved("raise ValueError('x' * 10**7)  # " + 'y' * 10**6), tmp_path)
    assert len(json.dumps(verdict.to_json())) < 20_000


@pytest.mark.parametrize('seed', [-1, 2**64, 1.5, 'a'])
def test_seed_that_is_none_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match='a seed is a whole number'):
        grade(EXERCISE, EXERCISE.solution, seed=seed)


def test_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='there is no file'):
        grade(EXERCISE, tmp_path / 'none.py')
    with pytest.raises(OSError, match='is no file that can be read'):
        grade(EXERCISE, tmp_path)
    loop = tmp_path / 'loop.py'
    loop.symlink_to(loop)
    with pytest.raises(OSError, match='there is no file|is no file'):
        grade(EXERCISE, loop)


def test_package_that_is_not_installed_keeps_nothing_else_from_being_forbidden(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'finished_answer.py').write_text('def answer():\n    return 42\n')
    monkeypatch.syspath_prepend(tmp_path)
    finished_answer = importlib.import_module('finished_answer')
    forbid(['no_such_package.part.function', 'finished_answer.answer'], lambda file: file == __file__)
    with pytest.raises(HandedBack, match='finished_answer.answer'):
        finished_answer.answer()


def test_every_forbidden_name_is_one_of_a_function_or_class() -> None:
    for exercise in all_exercises():
        for name in getattr(exercise.grader(), 'FORBIDDEN', ()):
            assert list(_named(name)), name


LATE = 'torch.distributed.pipelining.microbatch', 'torchgpipe', 'torch.distributed.pipelining.schedules.Schedule1F1B'
WAYS = {   # how a learner's file gets at what nobody has imported before
    'import a.b': 'import torch.distributed.pipelining.microbatch as m\nm.split_args_kwargs_into_chunks(1, 2, 3)',
    'from a import b': 'from torch.distributed.pipelining.microbatch import TensorChunkSpec\nTensorChunkSpec(0)',
    'from where it is imported': 'from torch.distributed.pipelining.schedules import merge_chunks\nmerge_chunks(1, 2)',
    'by name': 'import importlib\nimportlib.import_module("torch.distributed.pipelining.microbatch").TensorChunkSpec(0)',
    'once more': 'import importlib, torch.distributed.pipelining.microbatch as m\nimportlib.reload(m).TensorChunkSpec(0)',
    'from a package': 'import torchgpipe\ntorchgpipe.GPipe(None, [])',
    'from a part of it': 'from torchgpipe.microbatch import scatter\nscatter(1, 2)',
    'a class of a module': 'from torch.distributed.pipelining import Schedule1F1B\nSchedule1F1B(1, 2)',
}


@pytest.mark.slow
@pytest.mark.parametrize('way', WAYS)
def test_what_is_forbidden_is_imported_by_the_learner_s_file_alone_and_refused_then(way: str, tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text(WAYS[way])
    (tmp_path / 'judge.py').write_text(
        'import sys, torch\nfrom fewgpu.workshop.grading.forbid import HandedBack, forbid\n'
        f'forbid({LATE!r}, lambda file: file.endswith("mine.py"))\n'
        'assert not {"torch.distributed.pipelining", "torchgpipe"} & {*sys.modules}\n'
        'try: import mine\nexcept HandedBack as error: print("refused:", error)\n')
    done = subprocess.run([sys.executable, 'judge.py'], cwd=tmp_path, text=True, capture_output=True,
                          env={**os.environ, 'PYTHONPATH': str(Path(__file__).resolve().parents[1] / 'lib')})
    assert re.match(rf'refused: ({"|".join(map(re.escape, LATE))})', done.stdout), done.stderr


def test_fault_of_the_kit_is_not_put_down_to_the_learner(tmp_path: Path) -> None:
    """Its own exception `Failure` with a misconception that nobody lists stands for a grader with a mistake."""
    text = solved("from fewgpu.workshop.grading.grader import Failure\n    raise Failure(misconception='nobody-lists-this')")
    with pytest.raises(GraderError, match='not your file'):
        graded(text, tmp_path)
