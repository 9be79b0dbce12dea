"""Whatever a learner's file tries, a wrong answer does not pass, and what it did not touch keeps its verdict.

Each attack is a real file, graded for real. What is defended and what is not: see `fewgpu.workshop.grading`.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fewgpu.workshop.exercise import find
from fewgpu.workshop.grading.channel import MOST, Forged, Reader, make_key, open_for_reading, take_key, writer
from fewgpu.workshop.grading.grade import grade
from fewgpu.workshop.grading.verdict import Verdict
from fewgpu.workshop.runner.progress import Progress, record
from tests.forked import quick_popen
from tests.pipes import alive, settled

EXERCISE = find(1)
SOLUTION = EXERCISE.solution.read_text(encoding='utf-8')
PASSES = json.dumps({'id': 'sizes', 'title': 'sizes', 'points': 3, 'status': 'passed', 'misconception': '', 'message': '',
                     'case': '', 'lines': [], 'picture': '', 'svg': '', 'figures': {}, 'seconds': 0.0})
ALL_FILES = 'for file in range(3, 64):\n    try: {}\n    except OSError: pass\n'

ATTACKS = {   # of `sizes`, which then gives a wrong answer: what it does, and the misconceptions that may name it
    'prints a verdict': (f'print({PASSES!r})\nprint("10 of 10 points: passed")', ''),
    'writes a verdict into every open file': (
        'import os\n' + ALL_FILES.format(f'os.write(file, b"\\n" + {PASSES!r}.encode() + b"\\n")'), 'tampers'),
    'writes a verdict, and ends': (
        'import os\n' + ALL_FILES.format(f'os.write(file, {PASSES!r}.encode() + b"\\n")') + 'os._exit(0)', 'tampers'),
    'writes a line without an end': ('import os\n' + ALL_FILES.format('os.write(file, b"0" * 100)'), 'tampers'),
    'opens the file of verdicts': (
        'import sys\nwith open(sys.argv[4] + "/outcomes", "ab") as file: file.write(b"passed")', 'tampers raises'),
    'opens it by its number': (
        'import os\n' + ALL_FILES.format('open(f"/proc/self/fd/{file}", "ab").write(b"passed\\n")'), 'tampers'),
    'empties every open file': ('import os\n' + ALL_FILES.format('os.ftruncate(file, 0)'), ''),
    'closes every open file': ('import os\nos.closerange(3, 64)', 'exits tampers'),
    'ends as if all was well': ('import os\nos._exit(0)', 'exits'),
    'exchanges what compares': (
        'import fewgpu.workshop.grading.law as law\nlaw.equal = law.alike = lambda *_: True', 'tampers'),
    'exchanges what judges': ('import fewgpu.workshop.grading.law as law\nlaw.judge = lambda *_, **__: None', 'tampers'),
    'exchanges it under another name': (
        'import sys\nsys.modules["fewgpu.workshop.graders.01_microbatch"].judge = lambda *_, **__: None', 'raises'),
    'exchanges it by vars, and hides the exception': (
        'import sys\ntry: vars(sys.modules["fewgpu.workshop.grading.law"])["equal"] = lambda *_: True\n'
        'except BaseException: pass', 'tampers'),
    'exchanges the code of what compares': (
        'import fewgpu.workshop.grading.law as law\nlaw.equal.__code__ = (lambda one, other: True).__code__', 'tampers'),
    'exchanges a module': ('import sys, types\nsys.modules["fewgpu.workshop.grading.law"] = types.ModuleType("law")',
                           'tampers'),
    'exchanges a built-in function': ('import builtins\nbuiltins.all = builtins.bool = lambda *_: True', 'tampers'),
    'exchanges random cases': ('import random\nrandom.Random.randrange = lambda *_: 1', 'tampers'),
    'exchanges how outcomes are written': (
        'import json.encoder\njson.encoder.JSONEncoder.encode = lambda *_: "{}"', 'tampers'),
    'exchanges a function of torch': ('import torch\ntorch.equal = lambda *_: True', 'tampers'),
    'exchanges a method of tensors': ('import torch\ntorch.Tensor.__eq__ = lambda *_: True', 'tampers'),
    'leaves a mode of torch on': (
        'import torch.overrides\nclass Yes(torch.overrides.TorchFunctionMode):\n'
        '    def __torch_function__(self, *_): return True\nYes().__enter__()', 'tampers'),
    'exchanges the class of outcomes': (
        'import fewgpu.workshop.grading.verdict as verdict\nverdict.Outcome.passed = property(lambda self: True)', 'tampers'),
    'exchanges again and again in a thread': (
        'import threading, fewgpu.workshop.grading.law as law\ndef work():\n    while True: law.equal = lambda *_: True\n'
        'threading.Thread(target=work, daemon=True).start()\nimport time; time.sleep(0.2)', 'tampers'),
    'takes the right answer out of a frame': (
        'import sys\nframe = sys._getframe(1)\nwhile "truth" not in frame.f_locals: frame = frame.f_back\n'
        'return frame.f_locals["truth"]((rows, chunks))', 'tampers'),
    'takes a frame out of an exception': (
        'try: 1 / 0\nexcept ZeroDivisionError as error: frame = error.__traceback__.tb_frame\n'
        'while "truth" not in frame.f_locals: frame = frame.f_back\n'
        'return frame.f_locals["truth"]((rows, chunks))', 'tampers'),
    'takes a frame by getattr': (
        'def it(): yield\nframe = getattr(it(), "gi_" + "frame")\nreturn [rows]', 'tampers'),
    'takes a frame by inspect': ('import inspect\nframe = inspect.currentframe()', 'tampers'),
    'takes a frame from traceback': (
        'import traceback\nframe = [*traceback.walk_stack(None)][-1][0]\nprint(frame.f_locals)', 'tampers'),
    'hides that it tried': (
        'import sys\ntry: sys._getframe(1)\nexcept BaseException: pass', 'tampers'),
    'looks for the grader among all objects': ('import gc\nprint(len(gc.get_objects()))', 'tampers'),
    'asks who refers to its arguments': ('import gc\ngc.get_referrers(rows, chunks, sizes)', 'tampers'),
    'traces what runs': ('import sys\nsys.settrace(lambda *_: None)', 'tampers'),
    'watches by a hook': ('import sys\nsys.addaudithook(lambda *_: None)', 'tampers'),
    "calls Python's own C": ('import ctypes\nctypes.pythonapi.PyThreadState_Get()', 'tampers'),
    'forks by C': ('import ctypes\nctypes.CDLL(None).fork()', 'starts-processes'),
    'forks': ('import os\nos.fork()', 'starts-processes'),
    'asks the grader for the answer': (
        'from fewgpu.workshop.graders.micro_batches import truth\nreturn truth((rows, chunks))', 'handed-back'),
    'runs the solution': (
        f'names = {{}}\nexec(open({str(EXERCISE.solution)!r}).read(), names)\nreturn names["sizes"](rows, chunks)',
        'handed-back'),
    'imports the solution': (
        f'import importlib, sys\nsys.path.insert(0, {str(EXERCISE.solution.parent)!r})\nsys.modules.pop("01_microbatch", 0)\n'
        'return importlib.import_module("01_microbatch").sizes(rows, chunks)', 'handed-back'),
    'writes into the kit': (
        'import fewgpu\nopen(fewgpu.__file__, "a").close()', 'tampers'),
    'removes a part of the kit': (
        'import os, fewgpu\nos.remove(fewgpu.__file__ + ".none")', 'tampers'),
    'answers a list that is equal to all': (
        'class Yes(list):\n    __eq__ = lambda *_: True\n    __len__ = lambda *_: 1\n    __iter__ = lambda self: iter([])\n'
        'return Yes([rows])', ''),
    'answers numbers that are equal to all': (
        'class Yes(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\nreturn [Yes(rows)]', ''),
    'answers an object that is equal to all': (
        'class Yes:\n    __eq__ = lambda *_: True\nreturn [Yes()] * min(rows, chunks)', 'tampers'),
    'answers an object that says it is a number': (
        'class Yes:\n    __class__ = int\n    __index__ = lambda _: 1\nreturn [Yes()] * min(rows, chunks)', 'tampers'),
    'answers by a metaclass that says it is known': (
        'class Meta(type):\n    __eq__ = lambda *_: True\n    __hash__ = lambda _: hash(int)\n'
        'class Yes(int, metaclass=Meta):\n    __eq__ = lambda *_: True\nreturn [Yes(1)]', ''),
}
TENSORS = {   # of `gather`: what it returns
    'a tensor that is equal to all': (
        'class Yes(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, *_, **__): return True\n'
        'return torch.zeros(1).as_subclass(Yes)', ''),
    'an object that answers for torch': (
        'class Yes:\n    dtype, shape = torch.int64, (1,)\n    __class__ = torch.Tensor\n    @classmethod\n'
        '    def __torch_function__(cls, *_, **__): return True\nreturn Yes()', 'tampers'),
    'a tensor that computes in its own way': (
        'class Yes(torch.Tensor):\n    @classmethod\n    def __torch_dispatch__(cls, *_, **__): return True\n'
        'return torch.Tensor._make_wrapper_subclass(Yes, (1,))', 'tampers'),
}


def with_body(name: str, body: str, before: str = '', end: str = '\nreturn [rows]') -> str:
    """The solution with another body of a function."""
    head, _, rest = SOLUTION.partition(f'\ndef {name}(')
    signature, docstring, tail = rest.split('"""', 2)
    _, _, after = tail.partition('# END')
    return f'{before}\n{head}\ndef {name}({signature}"""{docstring}"""\n{textwrap.indent(body + end, "    ")}\n{after}'


def graded(text: str, folder: Path, popen: type = quick_popen) -> Verdict:
    file = folder / '01_microbatch.py'
    file.write_text(text, encoding='utf-8')
    compile(text, file, 'exec')
    return grade(EXERCISE, file, seed=1, popen=popen)


def of(verdict: Verdict, id: str) -> str:
    """What became of a check: its status, and the misconception."""
    return next((f'{each.status} {each.misconception}'.strip() for each in verdict.outcomes if each.id == id), '')


@pytest.mark.slow
@pytest.mark.parametrize('name', ATTACKS)
def test_an_attack_does_not_pass_and_is_named(name: str, tmp_path: Path) -> None:
    body, misconceptions = ATTACKS[name]
    verdict = graded(with_body('sizes', body), tmp_path)
    assert not verdict.passed
    assert of(verdict, 'sizes') in {f'failed {each}' for each in misconceptions.split()} or (
        not misconceptions and of(verdict, 'sizes').startswith('failed')), verdict.first_failure
    assert verdict.first_failure.message or verdict.first_failure.case
    others = [of(verdict, each) for each in ('gather', 'mean_loss')]
    assert others == ['passed'] * 2 or of(verdict, 'sizes') in ('failed tampers', 'failed exits') or 'empties' in name


@pytest.mark.slow
@pytest.mark.parametrize('name', TENSORS)
def test_tensors_that_lie_about_themselves_do_not_pass(name: str, tmp_path: Path) -> None:
    body, misconception = TENSORS[name]
    verdict = graded(with_body('gather', body, end=''), tmp_path)
    assert of(verdict, 'gather').startswith(f'failed {misconception}'.strip())
    assert of(verdict, 'sizes') == of(verdict, 'scatter') == of(verdict, 'mean_loss') == 'passed'


@pytest.mark.slow
def test_what_was_judged_before_keeps_its_verdict_when_a_later_function_forges(tmp_path: Path) -> None:
    forges = 'import os\n' + ALL_FILES.format(f'os.write(file, b"\\n" + {PASSES!r}.encode() + b"\\n")')
    verdict = graded(with_body('mean_loss', forges, end='\nreturn 1'), tmp_path)
    assert [of(verdict, each) for each in ('sizes', 'scatter', 'gather')] == ['passed'] * 3
    assert of(verdict, 'mean_loss') == 'failed tampers' and verdict.first_failure.lines == []
    verdict = graded(with_body('gather', 'import fewgpu.workshop.grading.law as law\nlaw.equal = lambda *_: True',
                               end='\nreturn 1'), tmp_path)
    assert of(verdict, 'gather') == 'failed tampers'
    assert [of(verdict, each) for each in ('sizes', 'scatter', 'mean_loss')] == ['passed'] * 3   # all is as before


@pytest.mark.slow
@pytest.mark.parametrize('before', [
    'import fewgpu.workshop.grading.law as law; law.equal = law.alike = lambda *_: True',
    'import torch; torch.equal = lambda *_: True', 'import random; random.Random.random = lambda self: 0.5',
    'import sys; sys._getframe(3)', 'import gc; gc.get_objects()',
])
def test_what_the_file_exchanges_while_it_is_read_is_named_before_any_check(before: str, tmp_path: Path) -> None:
    verdict = graded(with_body('sizes', '', before), tmp_path)
    assert of(verdict, 'file') == 'failed tampers' and verdict.earned == 0


@pytest.mark.slow
def test_built_in_functions_that_lie_from_the_beginning_change_nothing(tmp_path: Path) -> None:
    verdict = graded(with_body('sizes', '', 'import builtins; builtins.all = builtins.any = lambda *_: True'), tmp_path)
    assert of(verdict, 'sizes').startswith('failed') and of(verdict, 'gather') == 'passed'


INNOCENT = {
    'dataclasses, named tuples and enums': (
        'import dataclasses, collections, enum, typing\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n'
        'B = collections.namedtuple("B", "x")\nclass C(enum.Enum):\n    x = 1\nclass D(typing.NamedTuple):\n    x: int = 1\n'
        'T = typing.TypeVar("T")'),
    'logs and warnings': (
        'import logging, warnings\nlogging.basicConfig()\nlogging.getLogger("me").warning("it %s", 1)\nwarnings.warn("it")'),
    'a traceback that it prints': (
        'import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\ntraceback.print_stack()'),
    'signatures': 'import inspect\nprint(inspect.signature(print), inspect.getsource(inspect.signature)[:5])',
    'files of its own': (
        'import tempfile, pathlib\nwith tempfile.TemporaryDirectory() as f:\n    p = pathlib.Path(f, "x"); p.write_text("x")\n'
        '    p.rename(p.with_name("y"))\nopen("notes.txt", "w").close()'),
    'copies, pickles and saves': (
        'import copy, pickle, torch, io\nm = copy.deepcopy(torch.nn.Linear(2, 2))\npickle.loads(pickle.dumps(m))\n'
        'torch.save(m.state_dict(), io.BytesIO())'),
    'threads': (
        'import concurrent.futures\nwith concurrent.futures.ThreadPoolExecutor(2) as pool:\n'
        '    print(list(pool.map(str, range(5))))'),
    'modules of its own': 'import sys, types\nsys.modules["mine"] = types.ModuleType("mine"); import mine',
    'garbage collection': 'import gc, weakref\ngc.collect()\nclass A: pass\nweakref.ref(A())',
    'a function of its own with other defaults': 'def f(a, b=1): return b\nf.__defaults__ = (2,)\nassert f(1) == 2',
    'modes and subclasses of torch': (
        'import torch\nclass Mine(torch.Tensor): pass\nx = torch.ones(2).as_subclass(Mine)\nassert (x + x).sum() == 4\n'
        'with torch.no_grad(), torch.device("cpu"): torch.ones(2)\nx = torch.ones(2, requires_grad=True)\nx.sum().backward()'),
    'compiled patterns and cached functions': (
        'import functools, re, contextlib\n@functools.lru_cache\ndef f(x): return x\nf(1)\nre.compile("a+").match("aa")\n'
        'with contextlib.suppress(ValueError): raise ValueError'),
}


@pytest.mark.slow
def test_what_honest_files_do_is_no_tampering(tmp_path: Path) -> None:
    for at_once in (list(INNOCENT), []):
        before = '\n'.join(INNOCENT[name] for name in at_once)
        body = 'if "once" not in globals():\n' + textwrap.indent('\n'.join(['global once', 'once = True', *INNOCENT.values()]), '    ')
        inside = SOLUTION.replace('# STEP 1', textwrap.indent(body, '    ').lstrip() + '\n    # STEP 1', 1)
        verdict = graded(f'{before}\n{SOLUTION}' if at_once else inside, tmp_path)
        assert verdict.passed, [(each.misconception, each.message, each.lines) for each in verdict.failures]


@pytest.mark.slow
def test_progress_and_other_exercises_are_not_the_files_to_change(tmp_path: Path) -> None:
    folder = tmp_path / 'exercises'
    folder.mkdir()
    other = folder / '02_all_reduce.py'
    other.write_text('mine')
    for name in ('one', 'two'):
        record(tmp_path, Verdict(1, name, '', 1, []))
    kept = {file: file.read_bytes() for file in folder.iterdir()}
    for change in ('open("progress.json", "w").write("{}")', 'import os; os.remove("progress.json")',
                   'import os; os.replace("notes.txt", "progress.json")', 'import pathlib; pathlib.Path("progress.json").unlink()',
                   'import os; os.truncate("02_all_reduce.py", 0)', 'import shutil; shutil.rmtree(".")',
                   'import os; os.close(os.open(".progress.lock", os.O_TRUNC | os.O_WRONLY))'):
        (folder / 'notes.txt').touch()
        verdict = graded(with_body('sizes', change), folder)
        assert of(verdict, 'sizes') == 'failed tampers', (change, verdict.first_failure)
        assert all(file.read_bytes() == content for file, content in kept.items()), change
    progress = Progress.load(tmp_path)
    assert not progress.note and {*progress.entries} == {'one', 'two'}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='the marks of processes are read from /proc')
def test_no_process_survives_not_even_one_that_was_started_past_python(tmp_path: Path) -> None:
    """A library in C is what no hook sees: `multiprocessing`'s own fork_exec stands for it."""
    pids = tmp_path / 'pids'
    body = f'''
import _posixsubprocess, os, sys
# (the audit of subprocess is in subprocess, not here)
null = os.open(os.devnull, os.O_RDWR)
reading, writing = os.pipe()
code = "import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
arguments = [sys.executable.encode(), b'-c', code.encode()]
start = [arguments, [sys.executable.encode()], True, (writing,), None, None, -1, -1, -1, -1, -1, -1, reading, writing,
         True, False, 0, None, None, None, -1, None]
try:
    _posixsubprocess.fork_exec(*start, False)
except TypeError:
    _posixsubprocess.fork_exec(*start)
import time
while not os.path.exists({str(pids)!r}) or not os.path.getsize({str(pids)!r}):
    time.sleep(0.01)
'''
    verdict = graded(with_body('sizes', body), tmp_path, popen=subprocess.Popen)
    assert not verdict.passed
    assert settled(lambda: not alive(int(pids.read_text())), 60)   # it has lived, for it wrote its number


# The lines between the two processes


def test_lines_are_read_as_they_were_written_and_the_key_is_gone(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    assert take_key(tmp_path) == key and not any(tmp_path.iterdir())
    with open_for_reading(tmp_path / 'out') as file, open(tmp_path / 'out', 'wb') as out:
        write, reader = writer(out, key), Reader(file, key)
        for number in range(3):
            write({'number': number})
            assert reader.lines() == [{'number': number}]
        assert reader.lines() == []


@pytest.mark.parametrize('change', ['left out', 'twice', 'exchanged', 'altered', 'another key', 'added', 'no end', 'empty'])
def test_lines_that_are_not_as_they_were_written_are_refused(change: str, tmp_path: Path) -> None:
    key, file = os.urandom(32), tmp_path / 'out'
    with open(file, 'wb') as out:
        write = writer(out, key)
        for number in range(3):
            write({'status': f'failed {number}'})
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes({
        'left out': first + third, 'twice': first + first, 'exchanged': second + first, 'another key': first,
        'altered': first.replace(b'failed', b'passed'), 'added': first + PASSES.encode() + b'\n',
        'no end': b'0' * (MOST + 2), 'empty': b'\n'}[change])
    with open(file, 'rb') as content, pytest.raises(Forged):
        reader = Reader(content, os.urandom(32) if change == 'another key' else key)
        for _ in range(3):
            reader.lines()
