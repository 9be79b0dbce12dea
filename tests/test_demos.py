"""Demonstrations: each runs, says what it found about its claims, and its picture can be read."""

import ast
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import fewgpu.workshop.__main__ as workshop
from fewgpu import planner
from fewgpu.workshop import demo, demos
from fewgpu.workshop.claims import TEXTS, Finding
from fewgpu.workshop.demos import DEMOS, Show, summary
from tests.pictures import faults

# What is counted, or simulated, and so comes out alike on every machine. (What is timed need not.)
COUNTED = {'C09', 'C24', 'C25', 'C26', 'C27', 'C28', 'C36', 'C39', 'C40', 'C43', 'P01', 'P02', 'P03'}


def invoke(*arguments):
    return CliRunner().invoke(workshop.build(['demo']), ['demo', *map(str, arguments)], env={'COLUMNS': '100'})


def test_every_module_of_the_package_is_listed_and_nothing_else():
    modules = {path.stem for path in Path(demos.__file__).parent.glob('*.py')} - {'__init__'}
    assert sorted(name.replace('-', '_') for name in DEMOS) == sorted(modules)
    listed = invoke()
    assert listed.exit_code == 0
    for name in DEMOS:
        assert re.search(rf'^{name} ', listed.output, re.MULTILINE)
        assert len(summary(name)) > 20 and not summary(name).endswith('.')


def test_no_name_of_an_import_means_something_else_further_down():
    workshop_ = Path(demos.__file__).parents[1]
    hidden = []
    for path in (path for part in ('demos', 'measured', 'systems') for path in (workshop_ / part).glob('*.py')):
        tree = ast.parse(path.read_text(encoding='utf-8'))
        imported = {name.asname or name.name.partition('.')[0] for node in tree.body
                    if isinstance(node, (ast.Import, ast.ImportFrom)) for name in node.names}
        bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        bound |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        hidden += [(path.name, name) for name in imported & bound]
    assert hidden == []


def test_the_readme_names_every_demo_and_every_file_of_the_planner():
    text = (Path(__file__).parents[1] / 'README.md').read_text(encoding='utf-8')
    rows = ' '.join(re.findall(r'`demo [^|\n]*', text))   # `demo hybrid`, `gems`
    assert {name for name in DEMOS if f'`{name}`' not in rows and f'`demo {name}`' not in rows} == set()
    order = text.partition('### In which order to read')[2].partition('\n| where')[0].partition('What to run where')[2]
    files = {path.name for path in Path(planner.__file__).parent.glob('*.py')} - {'__init__.py'}
    assert {name for name in files if not re.search(rf'`(planner/)?{name}`', order)} == set()


def test_an_unknown_name_is_answered_with_those_there_are():
    answer = invoke('zeroo')
    assert answer.exit_code == 2
    assert 'there is no demo zeroo' in re.sub(r'[│\s]+', ' ', answer.output) and DEMOS[0] in answer.output


def test_a_place_that_cannot_be_written_is_said_before_anything_runs(tmp_path):
    (tmp_path / 'file').touch()
    (tmp_path / 'pictures/demo-zero.png').mkdir(parents=True)
    for name, *options in (('pipedream', '--out', tmp_path / 'file'), ('zero', '--out', tmp_path / 'pictures'),
                           ('--all', '--out', tmp_path / 'pictures'), ('zero', '--out', tmp_path, '--report', tmp_path),
                           ('zero', '--out', tmp_path, '--report', tmp_path / 'none/x.json')):
        answer = invoke(name, *options)
        assert answer.exit_code == 2 and f'cannot write to {options[-2]}' in re.sub(r'[│\s]+', ' ', answer.output)
    assert {path.name for path in tmp_path.rglob('*')} == {'file', 'pictures', 'demo-zero.png'}   # nothing else came


def test_a_demo_that_fails_leaves_pictures_and_reports_as_they_were(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, 'run', lambda *_: 1 / 0)
    before = {'demo-zero.png': 'a picture', 'report.json': '[]'}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    answer = invoke('zero', '--out', tmp_path, '--report', tmp_path / 'report.json')
    assert isinstance(answer.exception, ZeroDivisionError)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize('name', DEMOS)
def test_a_demo_runs_and_tells_what_it_found(name, monkeypatch, tmp_path):
    pictures = []
    monkeypatch.setattr(demo, 'run', lambda *args: pictures.append(demos.run(*args)) or pictures[-1])
    report = tmp_path / 'report.json'
    answer = invoke(name, '--out', tmp_path, '--report', report)

    assert answer.exit_code == 0, answer.output
    found = [Finding(*fields) for fields in json.loads(report.read_text())]
    assert found and {one.claim for one in found} <= TEXTS.keys()
    assert all(one.found and one.because for one in found)
    assert [one.claim for one in found if one.claim in COUNTED and not one.confirmed] == []
    assert (tmp_path / f'demo-{name}.png').stat().st_size > 10_000
    assert faults(pictures[0]) == []


@pytest.mark.parametrize('width', (60, 80, 119, 120, 200))
def test_the_table_of_all_has_a_row_a_claim_and_tells_of_failures(width):
    console, because = Console(width=width, file=io.StringIO()), 'padding [of a tensor]'
    console.print(demo.table({'zero': [Finding('C39', True, '4.0 MB', because=because), Finding('C40', None, '?')],
                              'hydra': None}, console.width))
    said = console.file.getvalue()
    assert all(word in said for word in ('C39', '4.0 MB', 'padding', '[of', 'confirmed', 'not decided here'))
    assert re.search(r'hydra .* failed', said) and said.count('zero') == 2
    assert all(len(line) <= width for line in said.splitlines())


@settings(deadline=None, max_examples=25)
@given(width=st.integers(40, 130),
       text=st.lists(st.text('abcxyz[]', min_size=1, max_size=12), min_size=1).map(' '.join))
def test_texts_keep_to_the_width_of_the_console_and_lose_no_word(width, text):
    console = Console(width=width, file=io.StringIO())
    show = Show(console)
    show.say(text)
    show.claims.test('C24', True, text, because=text)
    show.claims.test('C28', None, text)
    said = console.file.getvalue()
    assert max(map(len, said.splitlines())) <= min(width, demos.WIDEST)
    words = [text, demos.CODES, f'C24: {TEXTS["C24"]}', f'confirmed: {text}', text, f'C28: {TEXTS["C28"]}',
             f'not decided here: {text}']   # what a number means is said once, where the first is printed
    assert ''.join(said.split()) == ''.join(' '.join(words).split())


def test_a_claim_is_judged_by_a_run_or_by_a_judge_of_the_list():
    show = Show(Console(file=io.StringIO()))
    for by in ('', *demos.JUDGES, *(demos.WITH_A_RUN + judge for judge in demos.JUDGES)):
        show.claims.test('C24', True, 'found', by=by)
        assert next(iter(show.claims)).by == by
    with pytest.raises(ValueError, match='the cost model.*not by .someone'):
        show.claims.test('C24', True, 'found', by='someone')


def test_what_a_demo_notes_is_what_is_reported(capsys):
    show = Show(Console())
    show.claims.test('P01', False, 'nothing of it', because='why')
    assert list(show.claims) == [Finding('P01', False, 'nothing of it', '', 'why')]
    assert 'why' in capsys.readouterr().out
