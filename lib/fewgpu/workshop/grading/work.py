"""The learner's file: loaded, its functions at hand, and its own lines where something goes wrong."""

import ast
import functools
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

from fewgpu.workshop.grading.forbid import HandedBack, StartsProcess
from fewgpu.workshop.grading.grader import MOST_TEXT, Failure, InCase, first_line
from fewgpu.workshop.grading.plain import Lies, plain
from fewgpu.workshop.grading.reach import Tampers
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.practice.misuse import Misuse

MOST_LINES = 3
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)


class Work:
    """The functions and classes of a learner's file, as attributes: `work.scatter(batch, 4)`.

    An attribute that the file lacks, or whose function has no body yet, raises `Failure`.
    """

    def __init__(self, path: Path, changed: Callable[[], str] = str) -> None:
        """Load it. Raises `Failure` if it cannot be loaded. `changed`: the name of what the file has exchanged in the
        kit, or ''; it is asked whenever a function of the file has returned."""
        self._path, self._changed = path.resolve(), changed
        try:
            self._tree = ast.parse(self._path.read_bytes(), str(self._path))   # bytes say how they are encoded
            self._module = self._load()
        except SyntaxError as error:
            raise _unreadable(error, self._path) from error
        except ValueError as error:   # zero bytes, or an encoding that they are not in
            raise Failure(f'It is no text: save it as UTF-8 ({error}).', misconception='syntax-error') from error
        except BaseException as error:
            failure = self.explain(error)
            if failure.misconception in ('raises', 'wrong-type'):
                failure.misconception = 'does-not-load'
            raise failure from error

    def _load(self) -> ModuleType:
        sys.path.insert(0, str(self._path.parent))   # files of the learner's own beside it can be imported
        sys.dont_write_bytecode = True
        spec = importlib.util.spec_from_file_location(f'exercise_{self._path.stem}', self._path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module              # dataclasses and pickle look for it there
        spec.loader.exec_module(module)
        return module

    def __getattr__(self, name: str) -> Any:
        if name.startswith('_'):
            raise AttributeError(name)
        if name not in vars(self._module):
            raise Failure(f'There is no `{name}` in {self._path.name}; `./workshop.py reset {self._path.name[:2]}` '
                          f'brings the exercise as it was, and keeps a copy of '
                          f'yours.', misconception='missing-function')
        value = vars(self._module)[name]
        for node in _definitions(self._tree):
            if node.name == name and _is_empty(node) and _made_by(node, value):
                what = f'`{name}` has' if isinstance(node, ast.FunctionDef) else f'The methods of `{name}` have'
                raise Failure(f'{what} no body yet.', misconception='unsolved', lines=[self._line(node.lineno)])
        if inspect.iscoroutinefunction(value):
            raise Failure(f'`{name}` is `async`, so a call of it does nothing: write `def {name}`.',
                          misconception='wrong-type', lines=self.definition(name))
        return watched(value, self._changed) if callable(value) and not isinstance(value, type) else value

    @property
    def module(self) -> ModuleType:
        """The loaded file."""
        return self._module

    def definition(self, name: str) -> list[Line]:
        """The line that begins a function, class or method ('Stash.update'): where to look when its result is wrong."""
        found, inside = [], self._tree
        for part in name.split('.'):
            nodes = [node for node in _definitions(inside) if node.name == part]
            if not nodes:
                break   # a method that is inherited, or made elsewhere: its class has to do
            found, inside = [self._line(nodes[-1].lineno)], nodes[-1]
        return found

    def is_learners(self, file: str) -> bool:
        """Is that file the learner's, or one beside it?"""
        return Path(file).parent == self._path.parent

    def _line(self, number: int, file: str = '') -> Line:
        path = file or str(self._path)
        other = '' if path == str(self._path) else Path(path).name
        return Line(number, linecache.getline(path, number).rstrip()[:MOST_TEXT], other)

    def lines(self, trace: TracebackType | None) -> list[Line]:
        """The learner's own lines in a traceback, the innermost last; the kit's and torch's are left out."""
        places = [(frame.lineno, frame.filename) for frame in traceback.extract_tb(trace)
                  if self.is_learners(frame.filename)]
        places = [place for place, _ in groupby(places)]   # a comprehension has a frame of its own in the same line
        return [self._line(*place) for place in places[-MOST_LINES:]]

    def explain(self, error: BaseException) -> Failure:
        """What an exception that came out of the learner's code, or of a check that used its results, means."""
        if isinstance(error, InCase):
            failure = self.explain(error.error)
            failure.case = failure.case or error.case
            failure.misconception = error.misconception or failure.misconception
            return failure
        lines = self.lines(error.__traceback__)
        text = first_line(error)
        if isinstance(error, Failure):
            error.lines = error.lines or lines
            return error
        if isinstance(error, Misuse):
            return Failure(error.detail, misconception=error.misconception, lines=lines)
        if isinstance(error, HandedBack):
            return Failure(f'It is {error}.', misconception='handed-back', lines=lines)
        if isinstance(error, StartsProcess):
            return Failure(f'({error})', misconception='starts-processes', lines=lines)
        if isinstance(error, Tampers):
            return Failure(f'({error})', misconception='tampers', lines=lines)
        if isinstance(error, SystemExit):
            return Failure(misconception='exits', lines=lines)
        if isinstance(error, MemoryError) or isinstance(error, RuntimeError) and _NO_MEMORY.search(text):
            return Failure(misconception='too-much-memory', lines=lines)
        if lines:
            return Failure(f"{text.removesuffix('.')}.", misconception='raises', lines=lines)
        if isinstance(error, TypeError) and re.search(r'\w\(\) (missing|takes|got)', text):
            return Failure(f"{text.removesuffix('.')}.", misconception='signature')
        return Failure(f'({text})', misconception='wrong-type')


def watched(function: Callable, changed: Callable[[], str]) -> Callable:
    """The learner's function. What it returns are `plain` values, and what it leaves behind is as before: nothing of
    the kit's is exchanged, and no mode of torch's goes on. Raises Failure if not."""
    functions, dispatch = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        before = functions(), dispatch()
        try:
            result = function(*arguments, **named)
        finally:
            what = changed() or ('a mode of torch goes on' if (functions(), dispatch()) != before else '')
            if what:
                raise Failure(f'({what})', misconception='tampers')
        try:
            return plain(result)
        except Lies as lie:
            raise Failure(f'The answer is {lie}.', misconception='tampers') from None
    return call


def _definitions(tree: ast.AST) -> list[ast.FunctionDef | ast.ClassDef]:
    return [node for node in ast.iter_child_nodes(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]


def _made_by(node: ast.FunctionDef | ast.ClassDef, value: Any) -> bool:
    """Is that what the definition makes, and not a later one of the same name?"""
    if isinstance(value, type):
        return isinstance(node, ast.ClassDef)
    code = getattr(value, '__code__', None)
    return code is not None and node.lineno <= code.co_firstlineno + len(node.decorator_list) <= node.end_lineno


def _is_empty(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Nothing but a docstring, `pass`, `...`, `return`, or an exception that says so; in a class, in all methods."""
    if isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        return all(map(_is_empty, methods)) if methods else not node.bases and all(map(_does_nothing, node.body))
    return all(map(_does_nothing, node.body))


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Pass, ast.Raise)):
        return not isinstance(statement, ast.Raise) or 'NotImplemented' in ast.dump(statement)
    if isinstance(statement, (ast.Expr, ast.Return)):
        return statement.value is None or isinstance(statement.value, ast.Constant) and (
            isinstance(statement, ast.Expr) or statement.value.value is None)
    return False


def _unreadable(error: SyntaxError, path: Path) -> Failure:
    if error.lineno is None or re.search('null bytes|codec|encoding', error.msg):
        return Failure(f'It is no text in UTF-8: save it as such ({error.msg}).', misconception='syntax-error')
    if error.filename != str(path):   # of a file beside it
        return Failure(f'{error.msg} ({Path(error.filename or "").name}, line {error.lineno}).',
                       misconception='syntax-error')
    where = (error.text or '').rstrip('\n')[:MOST_TEXT]
    caret = re.sub(r'[^\t]', ' ', where[:max((error.offset or 1) - 1, 0)]) + '^'   # a tab stays one
    return Failure(f'{error.msg[:1].upper()}{error.msg[1:]}.', misconception='syntax-error',
                   case=f'{where}\n{caret}'.expandtabs(4) if where.strip() else '',
                   lines=[Line(error.lineno or 1, where)])
