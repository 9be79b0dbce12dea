"""The learner's file: loaded, its functions at hand, and its own lines where something goes wrong."""

import ast
import importlib.util
import linecache
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from fewgpu.workshop.grading.forbid import HandedBack, StartsProcess
from fewgpu.workshop.grading.grader import Failure, InCase
from fewgpu.workshop.grading.verdict import Line

MOST_LINES = 3
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)


class Work:
    """The functions and classes of a learner's file, as attributes: `work.scatter(batch, 4)`.

    An attribute that the file lacks, or whose function has no body yet, raises `Failure`.
    """

    def __init__(self, path: Path) -> None:
        """Load it. Raises `Failure` if it cannot be loaded."""
        self._path = path.resolve()
        try:
            source = self._path.read_text(encoding='utf-8')
            self._tree = ast.parse(source, str(self._path))
            self._module = self._load()
        except SyntaxError as error:
            raise _unreadable(error, self._path) from error
        except (UnicodeDecodeError, OSError) as error:
            raise Failure(f'({error}).', misconception='syntax-error') from error
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
            raise Failure(f'There is no `{name}` in {self._path.name}; `./workshop.py reset` brings the exercise as it '
                          f'was, and keeps a copy of yours.', misconception='missing-function')
        for node in _definitions(self._tree):
            if node.name == name and _is_empty(node):
                raise Failure(f'`{name}` has no body yet.', misconception='unsolved', lines=[self._line(node.lineno)])
        return getattr(self._module, name)

    def __contains__(self, name: str) -> bool:
        """Is there such a name, written or not?"""
        return name in vars(self._module)

    @property
    def module(self) -> ModuleType:
        """The loaded file."""
        return self._module

    def definition(self, name: str) -> list[Line]:
        """The line that begins a function or class: where to look when its result is wrong."""
        return [self._line(node.lineno) for node in _definitions(self._tree) if node.name == name]

    def is_learners(self, file: str) -> bool:
        """Is that file the learner's, or one beside it?"""
        return Path(file).parent == self._path.parent

    def _line(self, number: int, file: str = '') -> Line:
        path = file or str(self._path)
        other = '' if path == str(self._path) else Path(path).name
        return Line(number, linecache.getline(path, number).rstrip(), other)

    def lines(self, trace: TracebackType | None) -> list[Line]:
        """The learner's own lines in a traceback, the innermost last; the kit's and torch's are left out."""
        frames = [frame for frame in traceback.extract_tb(trace) if self.is_learners(frame.filename)]
        return [self._line(frame.lineno, frame.filename) for frame in frames[-MOST_LINES:]]

    def explain(self, error: BaseException) -> Failure:
        """What an exception that came out of the learner's code, or of a check that used its results, means."""
        if isinstance(error, InCase):
            failure = self.explain(error.error)
            failure.case = failure.case or error.case
            failure.misconception = error.misconception or failure.misconception
            return failure
        lines = self.lines(error.__traceback__)
        text = f'{type(error).__name__}: {error}'.strip().rstrip(':').partition('\n')[0]
        if isinstance(error, Failure):
            error.lines = error.lines or lines
            return error
        if isinstance(error, HandedBack):
            return Failure(f'You call {error}.', misconception='handed-back', lines=lines)
        if isinstance(error, StartsProcess):
            return Failure(f'({error})', misconception='starts-processes', lines=lines)
        if isinstance(error, SystemExit):
            return Failure('(sys.exit or exit was called.)', misconception='exits', lines=lines)
        if isinstance(error, MemoryError) or isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)):
            return Failure(misconception='too-much-memory', lines=lines)
        if lines:
            return Failure(f'{text}.', misconception='raises', lines=lines)
        if isinstance(error, TypeError) and re.search(r'\w\(\) (missing|takes|got)', str(error)):
            return Failure(f'{text}.', misconception='signature')
        return Failure(f'The check stumbled over it ({text}).', misconception='wrong-type')


def _definitions(tree: ast.AST) -> list[ast.FunctionDef | ast.ClassDef]:
    return [node for node in ast.iter_child_nodes(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


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
    if error.filename != str(path):   # of a file beside it
        return Failure(f'{error.msg} ({Path(error.filename or "").name}, line {error.lineno}).', misconception='syntax-error')
    where = (error.text or '').rstrip('\n')
    caret = re.sub(r'[^\t]', ' ', where[:max((error.offset or 1) - 1, 0)]) + '^'   # a tab stays one
    return Failure(f'{error.msg[:1].upper()}{error.msg[1:]}.', misconception='syntax-error',
                   case=f'{where}\n{caret}'.expandtabs(4) if where.strip() else '', lines=[Line(error.lineno or 1, where)])
