"""The notebooks in this clone: made from their sources, with the outputs of their own code, all in one form.

That their cells run, and give what is stored, is tested by nbval: `./workshop.py test --all`.
"""

import ast
import json
import re
import runpy
import subprocess
from pathlib import Path

import nbformat
import pytest

from fewgpu.workshop.claims import TEXTS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / 'notebooks'
MAKE = runpy.run_path(str(NOTEBOOKS / 'source/make.py'))
SOURCES = MAKE['sources']()
CODE_BLOCK = re.compile(r'```python\n(.*?)```', re.DOTALL)
HANDS_ON = NOTEBOOKS / 'source/08_mnist_gpipe.py'

every_lesson = pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)


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


@every_lesson
def test_a_notebook_is_what_is_made_from_its_source(source):
    stored = nbformat.reads(published(source), as_version=4)
    made = MAKE['made_from'](source.read_text(encoding='utf-8'), stored)
    assert nbformat.writes(made) + '\n' == published(source), 'run `python notebooks/source/make.py`'


@every_lesson
def test_outputs_are_those_of_the_code_that_is_there(source):
    assert MAKE['is_fresh'](nbformat.reads(published(source), as_version=4)), 'run `python notebooks/source/make.py`'


@every_lesson
def test_what_is_stored_can_be_shown_to_anybody(source):
    """Nothing of the machine that made it, no error, no widget without its kernel; measurements are marked."""
    for cell in notebook(source):
        if cell['cell_type'] == 'code':
            tags, outputs = cell['metadata'].get('tags', []), json.dumps(cell['outputs'])
            assert {*tags} <= {'measured', 'yours', 'nbval-ignore-output', 'raises-exception'}, tags
            assert cell['outputs'] == [] or 'yours' not in tags, text(cell)
            assert str(ROOT) not in outputs and str(Path.home()) + '/' not in outputs and '/tmp/' not in outputs
            assert 'widget-view' not in outputs and 'stderr' not in outputs
            assert 'raises-exception' in tags or '"output_type": "error"' not in outputs, text(cell)
            marked = bool(cell['outputs']) and cell['outputs'][0].get('text', []) == [MAKE['EXAMPLE']]
            assert marked == ('measured' in tags and cell['outputs'] != []), text(cell)


@every_lesson
def test_a_lesson_opens_with_its_aims_and_ends_with_three_lines_and_its_claims(source):
    opening, *middle, last = notebook(source)
    remember = last if text(last).startswith('## Remember') else middle[-1]   # where there are no claims
    assert re.match(rf'# {int(source.stem[:2])} \S', text(opening)), text(opening)
    assert 'you will be able to' in text(opening) and re.search(r'\babout \d+ minutes\b', text(opening))
    assert text(remember).startswith('## Remember') and len(re.findall(r'^\d\. ', text(remember), re.MULTILINE)) == 3
    tested = set(re.findall(r"claims\.test\('(C\d+)'", '\n'.join(cells(source, 'code'))))
    assert tested <= TEXTS.keys() and bool(tested) == ('claims = Claims()' in '\n'.join(cells(source, 'code')))
    assert (text(last) == 'claims') == bool(tested)
    assert tested <= set(re.findall(r'C\d\d', text(remember))), 'the claims tested are named beside their table'


def test_every_claim_is_tested_in_a_lesson_or_a_demo_and_every_exercise_is_checked_in_a_lesson():
    code = '\n'.join(cell for source in SOURCES for cell in cells(source, 'code'))
    demos = '\n'.join(path.read_text() for path in (ROOT / 'lib/fewgpu/workshop/demos').glob('*.py'))
    assert set(re.findall(r"\btest\(\s*'([CP]\d+)'", code + demos)) >= TEXTS.keys()
    exercises = {path.stem[:2] for path in (ROOT / 'solutions').glob('[0-9][0-9]_*.py')}
    assert {f'{int(number):02}' for number in re.findall(r'\bcheck\((\d+)\)', code)} == exercises


@every_lesson
def test_a_lesson_asks_before_it_shows(source):
    asked, guesses = '', 0
    for cell in notebook(source):
        if cell['cell_type'] == 'markdown':
            asked = text(cell)
        elif 'my_guess = ' in text(cell):
            guesses += 1
            assert '**Predict:**' in asked, text(cell)
            assert cell['metadata']['jupyter'] == {'outputs_hidden': True}   # the answer is stored folded
        assert 'compare(' not in text(cell) or guesses, text(cell)
    assert guesses >= (1 if source.stem.startswith('00') else 2)


@every_lesson
def test_cells_are_short_enough_to_be_read(source):
    for code in cells(source, 'code'):
        ast.parse(code)
        lines = code.splitlines()
        assert len(lines) <= 25 and max(map(len, lines), default=0) <= 110, code
    for prose in cells(source, 'markdown'):
        assert len(re.sub(CODE_BLOCK, '', prose).split()) <= 200, prose


@every_lesson
def test_what_a_lesson_names_is_there(source):
    everything = '\n'.join(cells(source, 'markdown') + cells(source, 'code'))
    for link in re.findall(r'\]\(([^)]+)\)', '\n'.join(cells(source, 'markdown'))):
        assert (NOTEBOOKS / link).exists(), link
    named = set(re.findall(r'\b(?:exercises|solutions|jobs)/\w+\.(?:py|sh)', everything))
    assert all((ROOT / name).exists() for name in named), named


@every_lesson
def test_a_cell_depends_on_no_folder(source):
    """JupyterLab, nbval and nbconvert start kernels in different folders."""
    for code in cells(source, 'code'):
        called = {node.func.id for node in ast.walk(ast.parse(code))
                  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {'open', 'Path'} and '..' not in code, code
        assert 'pyplot' not in code, 'a Picture shows itself, and is looked at by the tests'


def test_the_solution_that_a_lesson_offers_is_the_solution():
    solution = {line.strip() for line in (ROOT / 'solutions/09_mnist_gpipe.py').read_text().splitlines()}
    blocks = CODE_BLOCK.findall('\n'.join(cells(HANDS_ON, 'markdown')))
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert lines and [line for line in lines if line not in solution] == []
