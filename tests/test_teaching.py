"""TEACHING.md says what is so: its commands are there, the files that it names too, and its example is a grader."""

import re
import textwrap
from pathlib import Path
from random import Random

import pytest

from fewgpu.workshop.__main__ import PANELS
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.work import Work

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {name: where for commands in PANELS.values() for name, where in commands.items()}
TEXT = (ROOT / 'TEACHING.md').read_text(encoding='utf-8')
IMPORTS = '''
from random import Random
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Suspect, judge
from fewgpu.workshop.grading.work import Work
'''


def test_its_commands_and_files_are_there():
    assert set(re.findall(r'\./workshop\.py (\w+)', TEXT)) <= set(COMMANDS)
    named = set(re.findall(r'`((?:jobs|notebooks|lib|tests)/[\w./-]+)`', TEXT))
    assert {'jobs/site.sh.example-modules', 'lib/fewgpu/workshop/claims.py'} <= named
    to_be_made = {name for name in named if '_my_topic' in name or 'NN_name' in name} | {'jobs/site.sh'}
    assert not [name for name in named - to_be_made if not (ROOT / name).exists()]


def test_its_table_of_lessons_and_the_readmes_are_those_that_are_there():
    rows = {row[:2]: (int(minutes), re.findall(r'\d\d', exercises)) for row, minutes, exercises in
            re.findall(r'^\| (\d\d [^|]+) \| (\d+) \| ([\d, ]*)\|', TEXT, re.MULTILINE)}
    there = {}
    for path in sorted((ROOT / 'notebooks/source').glob('[0-9][0-9]_*.py')):
        source = path.read_text(encoding='utf-8')
        checked = [] if path.stem.startswith('00') else re.findall(r'^check\((\d+)\)', source, re.MULTILINE)
        there[path.stem[:2]] = int(re.search(r'about (\d+) minutes', source)[1]), [f'{int(n):02}' for n in checked]
    assert rows == there
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    assert re.findall(r'^\| (\d\d) [^|]+\|', readme, re.MULTILINE) == sorted(there)


@pytest.mark.parametrize('body, misconception', [('sum(parts)', None), ('sum(parts[:-1])', 'off-by-one'), ('3', '')])
def test_its_example_of_a_grader_judges(tmp_path, body, misconception):
    example = TEXT[TEXT.index('       FORBIDDEN ='):TEXT.index('   A check states a law')]
    grader: dict = {}
    exec(IMPORTS + textwrap.dedent(example), grader)
    file = tmp_path / '11_my_topic.py'
    file.write_text(f'def total(parts):\n    return {body}\n')
    try:
        grader['total'].run(Work(file), Random(1))
    except Failure as failure:
        assert failure.misconception == misconception
    else:
        assert misconception is None
    assert set(grader['HINTS']) == {'total'} and grader['total'].points == 10


def test_the_reading_order_names_every_module_of_the_library_and_each_reads_in_a_sitting():
    section = (ROOT / 'README.md').read_text().partition('### In which order to read')[2].partition('\n| where')[0]
    library, folder, named = ROOT / 'lib/fewgpu', '', []
    for token in re.findall(r'`([\w/]+\.py)`', section):
        folder = token.rpartition('/')[0] if '/' in token else folder
        found = [path for path in (library / folder / token, library / token) if path.exists() and path not in named]
        assert found, f'{token} is not in the library, or named twice'
        named.append(found[0])
    there = {path for path in library.rglob('*.py')
             if not path.stem.startswith('__') and path.relative_to(library).parts[0] != 'workshop'}
    assert set(named) == there
    assert [path for path in named if len(path.read_text().splitlines()) > 250] == []
