"""What cells of lessons use: scripts run from a cell, predictions, claims."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.meter import Memory
from fewgpu.workshop import lesson
from fewgpu.workshop.claims import TEXTS, Claims
from tests.pipes import alive, settled

REPORT = "import json, sys; json.dump({}, open(sys.argv[sys.argv.index('--report') + 1], 'w'))"


def script(folder: Path, code: str) -> str:
    """A script with these lines, as one writes it on a command line."""
    path = folder / 'a script.py'
    path.write_text(code)
    return shlex.quote(path.as_posix())


def test_a_run_shows_what_the_script_prints_and_returns_its_report(tmp_path, capsys):
    content = {'memory': [{'name': 'CPU 0', 'allocated': 1, 'peak': 3, 'parameters': 1, 'reserved': None}],
               'timeline': {'names': ['CPU 0'], 'rows': [[['F', 0, 0, 0.0, 2.0]]]}}
    lines = f"print('löss'); print(*sys.argv[1:3]); {REPORT.format(content)}"
    report = lesson.run(f"{script(tmp_path, 'import sys;' + lines)} --arch 'res net'")
    assert capsys.readouterr().out == 'löss\n--arch res net\n'
    assert report == content
    assert report.memory == [Memory('CPU 0', 1, 3, 1)]
    assert report.timeline.makespan == 2.0 and report.timeline.names == ('CPU 0',)


def test_a_plain_report_has_no_timeline(tmp_path):
    report = lesson.run(script(tmp_path, REPORT.format({'timeline': None})))
    assert report.timeline is None and report.memory == []


@pytest.mark.parametrize('code', [1, 3])
def test_a_failed_run_has_no_report_and_says_its_exit_code(tmp_path, capsys, code):
    failing = f"import sys; print('too large', file=sys.stderr); sys.exit({code})"
    assert lesson.run(script(tmp_path, failing)) is None
    assert capsys.readouterr().out == f'too large\n(a script.py ended with exit code {code}.)\n'


def test_an_unknown_script_is_named_with_its_neighbours():
    with pytest.raises(FileNotFoundError, match='exercises/mnist_torch.py.* mean exercises/mnist_pytorch.py'):
        lesson.run('exercises/mnist_torch.py --arch resnet18')


@pytest.mark.skipif(os.name == 'nt', reason='sends POSIX signals')
def test_an_interrupted_run_leaves_no_process(tmp_path):
    name = script(tmp_path, 'import os, time; print(os.getpid(), flush=True); time.sleep(60)')
    command = [sys.executable, '-c', f'from fewgpu.workshop import lesson; lesson.run({name!r})']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) != 0
    assert settled(lambda: not alive(child))


def test_a_command_of_the_kit_is_shown_as_in_a_terminal(capfd):
    lesson.workshop('draw --help')
    assert 'Usage: workshop.py draw' in capfd.readouterr().out


def test_code_of_the_library_is_shown_as_it_stands_there():
    from fewgpu.schedule import gpipe, one_f_one_b

    file = (lesson.repository() / 'lib/fewgpu/schedule/gpipe.py').read_text(encoding='utf-8')
    shown = lesson.Source(gpipe, one_f_one_b)
    assert repr(lesson.Source(gpipe)) in file and repr(lesson.Source(gpipe)) in repr(shown)
    assert shown._repr_markdown_() == f'```python\n{shown!r}\n```'


@given(st.floats(0.1, 1e6), st.floats(0, 3))
def test_a_prediction_is_well_seen_within_a_fifth(measured, off):
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        lesson.compare(measured * off, measured, ' MB')
    if abs(abs(off - 1) - 0.2) > 1e-9:
        assert ('not close' not in out.getvalue()) == (abs(off - 1) < 0.2)


def test_no_prediction_is_no_fault(capsys):
    lesson.compare(None, 0.5, ' s')
    assert capsys.readouterr().out == 'Found: 0.5 s. (No prediction was made.)\n'


@pytest.mark.parametrize('guess', ['12', '', '1,5', [1], True, 1j])
def test_a_prediction_that_is_no_number_gets_a_sentence(guess, capsys):
    lesson.compare(guess, 12, ' MB', doubt=' (but busy)')
    said = capsys.readouterr().out
    assert said.startswith('Found: 12 MB. (A prediction is a number') and said.endswith(' (but busy)\n')


@pytest.mark.parametrize('value, written', [(0.5, '0.5'), (12.34, '12.3'), (999.4, '999'), (999.9, '1,000'), (1000, '1,000'), (9139, '9,139')])
def test_what_is_found_is_written_without_powers_of_ten(value, written, capsys):
    lesson.compare(None, value)
    assert capsys.readouterr().out == f'Found: {written}. (No prediction was made.)\n'


@given(st.lists(st.tuples(st.sampled_from(sorted(TEXTS)), st.sampled_from([True, False, None]))))
def test_of_each_claim_the_latest_finding_is_shown_in_order(findings):
    claims = Claims()
    for position, (claim, confirmed) in enumerate(findings):
        claims.test(claim, confirmed, f'finding {position}', by='' if position % 2 else 'the simulator')
    latest = {claim: (confirmed, f'finding {position}') for position, (claim, confirmed) in enumerate(findings)}
    assert [(one.claim, (one.confirmed, one.found)) for one in claims] == sorted(latest.items())
    table = claims._repr_markdown_().splitlines()[2:]
    for row, one in zip(table, claims, strict=True):
        assert ('the simulator' in one.verdict) == (one.by != '' and one.confirmed is not None)
        assert all(part in row for part in (one.claim, TEXTS[one.claim], one.found, f'**{one.verdict}**'))
        assert one.verdict in repr(claims)


def test_a_claim_that_nobody_made_is_refused():
    with pytest.raises(KeyError, match='C99'):
        Claims().test('C99', True, '')
