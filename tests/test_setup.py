"""The set-up as files: the lists of dependencies agree, workshop.py suits any Python, start-up imports no torch.

tests/test_setup_run.py really sets the kit up.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewgpu
from fewgpu.workshop import repository
from fewgpu.workshop.__main__ import PANELS
from fewgpu.workshop.machine import cores
from fewgpu.workshop.tests import pytest_options

COMMANDS = {name: where for commands in PANELS.values() for name, where in commands.items()}

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
CONDA_NAMES = {'pytorch': 'torch', 'matplotlib-base': 'matplotlib'}


def load_workshop():
    """workshop.py as a module, without running it."""
    spec = importlib.util.spec_from_file_location('workshop', ROOT / 'workshop.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


workshop = load_workshop()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.'))


def pinned() -> dict[str, str]:
    return dict(pin.split('==') for pin in workshop.pins().values())


def accepted() -> dict[str, str]:
    """The oldest version that pyproject.toml accepts, by name: dependencies and every extra."""
    lists = [PROJECT['dependencies'], *PROJECT['optional-dependencies'].values()]
    return dict(requirement.split('>=') for requirements in lists for requirement in requirements)


def test_requirements_pins_exactly_what_pyproject_accepts():
    assert pinned().keys() == accepted().keys()
    for name, oldest in accepted().items():
        assert numbers(pinned()[name]) >= numbers(oldest), name


def test_conda_gets_the_same_versions():
    entries = re.findall(r'^ +- +([\w.-]+)==?([\d.]+)', (ROOT / 'environment.yml').read_text(), re.MULTILINE)
    conda = {CONDA_NAMES.get(name, name): version for name, version in entries}
    python = conda.pop('python')
    assert conda == pinned()
    assert numbers(python) >= numbers(PROJECT['requires-python'].removeprefix('>='))
    assert numbers(PROJECT['requires-python'].removeprefix('>=')) == workshop.OLDEST


def third_party_imports(folder: str) -> dict[str, str]:
    """Every top-level module that the folder's Python files import from elsewhere, with one file that does."""
    ours = {path.stem for path in ROOT.rglob('*.py') if '.venv' not in path.parts}
    ours |= {path.parent.name for path in (ROOT / 'lib').rglob('__init__.py')} | {'tests'}
    found = {}
    for file in (ROOT / folder).rglob('*.py'):
        if 'bank' in file.parts:   # answers of learners, who write what they like
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            found.update({name.split('.')[0]: str(file.relative_to(ROOT)) for name in names})
    return {name: file for name, file in found.items() if name not in ours | set(sys.stdlib_module_names)}


@pytest.mark.parametrize('folder', ['lib', 'exercises', 'solutions', 'tests', 'notebooks'])
def test_everything_imported_is_a_declared_dependency(folder):
    brought = {'IPython', 'jupyter_client', 'nbformat', 'nbclient', 'numpy', 'PIL'}   # by jupyterlab and matplotlib
    known = pinned().keys() | brought
    assert {name: file for name, file in third_party_imports(folder).items() if name not in known} == {}


def test_no_line_of_the_kit_is_longer_than_120_columns():
    long = [f'{path.relative_to(ROOT)}:{number}' for path in (ROOT / 'lib').rglob('*.py')
            for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1) if len(line) > 120]
    assert long == []


def test_workshop_is_standard_library_only_and_an_old_python_can_read_it():
    tree = ast.parse((ROOT / 'workshop.py').read_text(), feature_version=(3, 6))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported = {name.split('.')[0] for name in imported}
    assert imported and imported <= set(sys.stdlib_module_names)
    assert os.name == 'nt' or os.access(ROOT / 'workshop.py', os.X_OK)


@given(st.tuples(st.integers(2, 4), st.integers(0, 30), st.integers(0, 20)))
def test_too_old_a_python_gets_one_sentence_and_others_none(version):
    said = workshop.too_old(version)
    assert bool(said) == (version < (3, 11))
    if said:
        assert 'Python {}.{}'.format(*version) in said and 'python3.12 workshop.py' in said and '\n' not in said


def run(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', code, *arguments], capture_output=True, text=True, **options)


def test_a_python_without_venv_gets_one_sentence(tmp_path):
    for name in ('workshop.py', 'requirements.txt', 'pyproject.toml'):
        (tmp_path / name).write_text((ROOT / name).read_text())
    hidden = "import runpy, sys; sys.modules['ensurepip'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = run(hidden, str(tmp_path / 'workshop.py'))
    assert done.returncode == 1
    assert 'install its venv module' in done.stderr and len(done.stderr.splitlines()) == 1


def test_errors_of_the_disk_get_one_sentence_each():
    for code in (28, 30, 13):  # no space left; read-only file system; permission denied
        assert len(workshop.sentence(code).splitlines()) == 1
    assert workshop.sentence(2) == ''


def test_this_environment_fits_this_clone_and_no_other(tmp_path, monkeypatch):
    assert workshop.this_environment_fits()
    monkeypatch.setattr(workshop, 'pins', lambda: {'no-such-package': 'no-such-package==1'})
    assert not workshop.this_environment_fits()
    monkeypatch.undo()
    monkeypatch.setattr(workshop, 'ROOT', tmp_path)
    assert not workshop.this_environment_fits()


def test_a_changed_pin_or_a_moved_clone_calls_for_a_new_set_up(tmp_path, monkeypatch):
    before = workshop.fingerprint()
    assert workshop.fingerprint() == before
    monkeypatch.setattr(workshop, 'VENV', tmp_path)
    moved = workshop.fingerprint()
    for name in ('requirements.txt', 'pyproject.toml'):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / 'requirements.txt').write_text('torch==0\n')
    monkeypatch.setattr(workshop, 'ROOT', tmp_path)
    assert len({before, moved, workshop.fingerprint()}) == 3


def test_importing_fewgpu_and_asking_for_help_import_no_torch():
    code = (
        "import runpy, sys, fewgpu\nsys.argv = ['workshop', '--help']\n"
        "try: runpy.run_module('fewgpu.workshop', run_name='__main__')\n"
        "finally: assert not {'torch', 'matplotlib', 'IPython'} & set(sys.modules)"
    )
    done = run(code)
    assert (done.returncode, done.stderr) == (0, '')
    assert all(re.search(rf'^\W+{name} ', done.stdout, re.MULTILINE) for name in COMMANDS), done.stdout


def test_every_name_that_fewgpu_offers_can_be_fetched_and_others_are_refused():
    assert set(fewgpu.__all__) <= set(dir(fewgpu))
    for name in fewgpu.__all__:   # (launch may be its module, which can be called, too)
        offered = getattr(fewgpu, name)
        assert callable(offered) and offered.__name__.rpartition('.')[2] == name
    with pytest.raises(AttributeError, match="no attribute 'Gpipe'; it offers .*GPipe"):
        fewgpu.Gpipe


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_exists_and_explains_itself(name):
    module, function, _ = COMMANDS[name]
    assert getattr(importlib.import_module(f'fewgpu.workshop.{module}'), function).__doc__


@given(st.lists(st.sampled_from(['-x', '-k', 'gpipe', '--lf'])), st.booleans())
def test_pytest_runs_all_tests_and_the_users_arguments_come_last(extra, everything):
    options = pytest_options(ROOT, everything, extra)
    assert 'tests' in options and options[len(options) - len(extra) :] == extra
    assert ('not slow' in options) != everything
    assert ('notebooks' in options) == (everything and (ROOT / 'notebooks').is_dir())
    assert 'tests' not in pytest_options(ROOT, everything, [*extra, 'tests/test_setup.py::test_x'])
    assert ('-n' in options) == (cores() > 1)
    assert '-n' not in pytest_options(ROOT, everything, ['--pdb', *extra])


@pytest.mark.parametrize(('body', 'code'), [('assert True', 0), ('assert False', 1)])
def test_the_test_command_ends_with_pytests_exit_code(body, code, tmp_path):
    (tmp_path / 'test_one.py').write_text(f'def test_one():\n    {body}\n')
    command = [sys.executable, '-m', 'fewgpu.workshop', 'test', '--', str(tmp_path), '-p', 'no:cacheprovider']
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == code


def test_ci_runs_the_readmes_test_command_with_everything():
    script = (ROOT / '.ci' / 'run').read_text()
    assert 'python3 workshop.py test --all\n' in script and 'set -euo pipefail\n' in script
    assert subprocess.run(['bash', '-n', ROOT / '.ci' / 'run']).returncode == 0
    assert './workshop.py test' in (ROOT / 'README.md').read_text()


def test_the_licence_is_apache_in_full_and_the_repository_is_found():
    text = (ROOT / 'LICENSE').read_text()
    assert 'Apache License\n' in text and 'END OF TERMS AND CONDITIONS' in text
    assert PROJECT['license'] == 'Apache-2.0'
    assert repository() == ROOT
