"""Files of the commands are refused before anything is computed, if they cannot be written, and are written whole."""

import errno
import os
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import fewgpu.workshop.__main__ as workshop
from fewgpu.workshop import compare, demo, draw, plan
from fewgpu.workshop.writable import make_writable, written

COMMANDS = {'demo': ('demo', 'zero'), 'plan': ('plan', '--gpus', '8'), 'draw': ('draw', '1f1b'),
            'draw --measure': ('draw', '1f1b', '--measure'), 'compare': ('compare', '--devices', '2'),
            'compare --all': ('compare', '--all', '--devices', '2')}
FILES = {'demo': 'demo-zero.png', 'plan': 'plan-gpt-2.2B-8.png', 'draw': '1f1b-4x8.html',
         'draw --measure': '1f1b-4x8-measured.csv', 'compare': 'compare.json', 'compare --all': 'systems.png'}


class Computed(Exception):
    """What must not be reached."""


@pytest.fixture
def command(monkeypatch):
    def reached(*_, **__):
        raise Computed

    monkeypatch.setattr(demo, 'run', reached)
    monkeypatch.setattr(plan, 'fastest_first', reached)
    monkeypatch.setattr(draw, 'simulate', reached)
    monkeypatch.setattr('fewgpu.workshop.predicted.run', reached)
    monkeypatch.setattr(compare, '_introduce', reached)
    monkeypatch.setattr(compare, '_choose_balance', reached)

    def run(name, out):
        words = [*COMMANDS[name], '--out', str(out)]
        return CliRunner().invoke(workshop.build(words[:1]), words, env={'COLUMNS': '200'})
    return run


def read_only(monkeypatch, folder):
    """Nothing can be written into it, nor removed: as on a file system that is mounted to be read."""
    opened, unlink = Path.open, Path.unlink

    def refuse(path, function, *arguments, **options):
        if folder in path.parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return function(path, *arguments, **options)

    monkeypatch.setattr(Path, 'open', lambda path, *a, **k: refuse(path, opened, *a, **k))
    monkeypatch.setattr(Path, 'unlink', lambda path, *a, **k: refuse(path, unlink, *a, **k))


@pytest.mark.parametrize('blocked', ['a file in place of the folder', 'a folder in place of a file', 'read only'])
@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_refuses_before_it_computes(name, blocked, command, tmp_path, monkeypatch):
    out = tmp_path / 'out'
    if blocked == 'a file in place of the folder':
        out.touch()
    elif blocked == 'a folder in place of a file':
        (out / FILES[name]).mkdir(parents=True)
    else:
        out.mkdir()
        read_only(monkeypatch, out)
    answer = command(name, out)
    said = re.sub(r'[│\s]+', ' ', answer.output)
    assert answer.exit_code == 2 and f'cannot write to --out {out}' in said, (answer.exception, said)
    assert not [path for path in tmp_path.rglob('*') if path.is_file() and path != out]


@pytest.mark.parametrize('name', COMMANDS)
def test_a_folder_that_can_be_written_is_made_and_then_it_computes(name, command, tmp_path):
    assert isinstance(command(name, tmp_path / 'a/b').exception, Computed)
    made = {path.relative_to(tmp_path / 'a/b').as_posix() for path in (tmp_path / 'a/b').rglob('*')}
    assert made == ({'reports'} if name == 'compare' else set())   # where its scripts write


@pytest.mark.parametrize('blocked', ['x.json', 'reports'])
def test_what_blocks_one_file_or_folder_is_named_and_stays(tmp_path, blocked):
    make_writable('--out', [tmp_path / 'new/x.json'], [tmp_path / 'new'])
    (tmp_path / blocked).mkdir() if blocked == 'x.json' else (tmp_path / blocked).write_text('a file in its place')
    with pytest.raises(typer.BadParameter, match=f'cannot write to --out .*{blocked}'):
        make_writable('--out', [tmp_path / 'x.json'], [tmp_path, tmp_path / 'reports'])
    assert (tmp_path / blocked).exists()


def test_a_folder_in_place_of_a_file_is_refused_however_it_is_written_and_no_other_folder_is(tmp_path):
    for folder in ('.', '/', '..'):
        with pytest.raises(typer.BadParameter, match='it is a folder'):
            make_writable('--report', [Path(folder)])
    (tmp_path / 'any').mkdir()
    make_writable('--out', [tmp_path / 'x.json'], [tmp_path])
    assert [*tmp_path.iterdir()] == [tmp_path / 'any']


def test_a_file_takes_the_place_of_the_old_one_whole_or_not_at_all(tmp_path):
    path = tmp_path / 'x'
    path.write_bytes(b'old')
    make_writable('--out', [path], [tmp_path])
    with pytest.raises(ZeroDivisionError), written(path, '--out') as file:
        file.write(b'ne')
        raise ZeroDivisionError
    assert path.read_bytes() == b'old' and [*tmp_path.iterdir()] == [path]
    with written(path, '--out') as file:
        file.write(b'new')
    assert path.read_bytes() == b'new' and [*tmp_path.iterdir()] == [path]
