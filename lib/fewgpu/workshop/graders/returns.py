"""Is there any `return` at all? What was forgotten is said before anything else."""

import ast
import inspect
import textwrap
from typing import Any

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.verdict import Line


def check_returns(function: Any, lines: list[Line]) -> None:
    """Raise Failure if a function has a body, and no way through it returns a value."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (TypeError, OSError, SyntaxError):   # it is no plain function
        return
    is_function = bool(tree.body) and isinstance(tree.body[0], ast.FunctionDef)
    if is_function and not any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(tree)):
        raise Failure(f'There is no `return` in `{function.__name__}`.', misconception='returns-nothing', lines=lines)
