"""The notebooks in this clone: made from their sources, without outputs, and pointing at things that are there.

That their cells run is tested by nbval: `./workshop.py test --all`.
"""

import ast
import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from fewgpu.workshop.claims import TEXTS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / 'notebooks'
MAKE = runpy.run_path(str(NOTEBOOKS / 'source/make.py'))
SOURCES = MAKE['sources']()
CODE_BLOCK = re.compile(r'```python\n(.*?)```', re.DOTALL)


def in_git(path: Path) -> str | None:
    """A file as it is staged; None where git does not know it, or is not there."""
    command = ['git', 'show', f':{path.relative_to(ROOT).as_posix()}']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return done.stdout.decode() if done.returncode == 0 else None


def published(source: Path) -> str:
    """The text of a notebook. Whoever changes a notebook without its source is a learner at work: git's copy counts."""
    path = NOTEBOOKS / f'{source.stem}.ipynb'
    untouched = in_git(source) == source.read_text(encoding='utf-8') and in_git(path)
    return untouched or path.read_text(encoding='utf-8')


def notebook(source: Path) -> list[dict]:
    return json.loads(published(source))['cells']


def text(cell: dict) -> str:
    return ''.join(cell['source'])


def cells(source: Path, kind: str) -> list[str]:
    return [text(cell) for cell in notebook(source) if cell['cell_type'] == kind]


def test_every_notebook_has_a_source_and_every_source_a_notebook():
    assert SOURCES
    assert {path.stem for path in NOTEBOOKS.glob('*.ipynb')} == {path.stem for path in SOURCES}


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_what_is_made_from_its_source(source):
    made = MAKE['made_from'](source.read_text(encoding='utf-8'))
    assert published(source) == made, 'run `python notebooks/source/make.py`'


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_a_notebook_stores_no_outputs(source):
    code = [cell for cell in notebook(source) if cell['cell_type'] == 'code']
    assert code and all(cell['outputs'] == [] and cell['execution_count'] is None for cell in code)


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_a_lesson_says_what_one_will_be_able_to_do_and_ends_with_the_claims_it_tested(source):
    opening, last = notebook(source)[0], notebook(source)[-1]
    assert opening['cell_type'] == 'markdown' and 'you will be able to' in text(opening)
    assert text(last).splitlines()[-1] == 'claims'
    tested = set(re.findall(r"claims\.test\('(C\d+)'", '\n'.join(cells(source, 'code'))))
    assert tested and tested <= TEXTS.keys()


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_cells_are_short_enough_to_be_read(source):
    for code in cells(source, 'code'):
        ast.parse(code)
        lines = code.splitlines()
        assert len(lines) <= 25 and max(map(len, lines)) <= 110, code
    for prose in cells(source, 'markdown'):
        assert len(re.sub(CODE_BLOCK, '', prose).split()) <= 260, prose


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_what_a_lesson_names_is_there(source):
    everything = '\n'.join(cells(source, 'markdown') + cells(source, 'code'))
    for link in re.findall(r'\]\(([^)]+)\)', '\n'.join(cells(source, 'markdown'))):
        assert (NOTEBOOKS / link).exists(), link
    named = set(re.findall(r'\b(?:exercises|solutions|jobs)/\w+\.(?:py|sh)', everything))
    assert named and all((ROOT / name).exists() for name in named), named


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_a_cell_depends_on_no_folder(source):
    """JupyterLab, nbval and nbconvert start kernels in different folders."""
    for code in cells(source, 'code'):
        called = {node.func.id for node in ast.walk(ast.parse(code))
                  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {'open', 'Path'} and '..' not in code, code


def test_the_solution_that_a_lesson_offers_is_the_solution():
    solution = {line.strip() for line in (ROOT / 'solutions/09_mnist_gpipe.py').read_text().splitlines()}
    blocks = CODE_BLOCK.findall('\n'.join(cells(NOTEBOOKS / 'source/mnist_gpipe.py', 'markdown')))
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert lines and [line for line in lines if line not in solution] == []
