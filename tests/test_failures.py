"""Seven faults on real runs: from what the kit says alone each is told from the others; healthy runs say nothing."""

import io
import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random, SystemRandom

import pytest
from rich.console import Console
from typer.testing import CliRunner

import fewgpu.workshop.__main__ as workshop
from fewgpu.trace import WAITS
from fewgpu.workshop import failures
from fewgpu.workshop.fail import drawn, letters
from fewgpu.workshop.failures import FAULTS, Outcome, module, run, summary

ROOT = Path(__file__).parents[1]
ON_THREADS = 'straggler', 'slow-link', 'out-of-memory', 'wrong-loss-scale'
ON_RANKS = 'rank-killed', 'mismatched-collective', 'forgotten-sync'

# What a reader of a message sees at once, and what it has to say of a place that was chosen at random.
READS = {
    'straggler': (r'\btakes [\d.]+ times its share', lambda w: [
        f'CPU {w["device"]} takes', f'of stage {w["device"]} ']),
    'slow-link': (r'\blink between .* is slow', lambda w: [f'stages {w["link"]} and {w["next"]} is slow', 'bandwidth']),
    'rank-killed': (r'\b(was killed|died)\b', lambda w: [
        f'rank {w["rank"]} of 2 was killed by SIGKILL', f'; rank {1 - w["rank"]} is ', 'its last sign of life was',
        'latest checkpoint']),
    'mismatched-collective': (r'\bcalls .* where .* calls', lambda w: [
        f'rank {w["rank"]} calls {w["calls"]}', f'rank {1 - w["rank"]} calls all_reduce', w['with'], '.py:', 'call 3']),
    'out-of-memory': (r'\bout of memory\b', lambda w: [
        f'CPU {w["device"]} out of memory', f'in stage {w["device"]} on', f'its {w["limit"]:.1f} MB limit',
        'of micro-batch']),
    'wrong-loss-scale': (r"\btimes the plain model's", lambda w: [
        f'gradients are {w["times"]:.3g} times', f'the number of micro-batches, {w["chunks"]}:']),
    'forgotten-sync': (r'\bdrifted apart\b', lambda w: [
        repr(w['parameter']), f'rank {w["rank"]} has other numbers than ranks', 'average the gradients']),
}


def some_seed() -> int:
    seed = SystemRandom().randrange(10**6)
    print(f'seed {seed}')
    return seed


def verify(name: str, outcome: Outcome) -> None:
    """One reads this fault, and no other, and where it is; the timeline has something to show."""
    read = [fault for fault, (reads, _) in READS.items() if re.search(reads, outcome.message)]
    assert read == [name], outcome.message
    for fact in READS[name][1](outcome.where):
        assert fact in outcome.message, f'{fact!r} is not in: {outcome.message}'
    assert '/' not in outcome.message.replace('bytes/s', '') and 'Traceback' not in outcome.message
    assert not [fault for fault in READS if fault in outcome.message or fault.replace('-', '_') in outcome.message]
    assert any(outcome.timeline.rows) and outcome.timeline.makespan > 0
    words = module(name).WHAT.format(**outcome.where)
    assert '{' not in words and '\n' not in words + module(name).CHANGE


@pytest.mark.parametrize('name', ON_THREADS)
def test_what_is_said_of_a_fault_on_threads_names_it_and_its_place(name: str) -> None:
    verify(name, run(name, Random(some_seed())))


@pytest.mark.slow
@pytest.mark.parametrize('name', ON_RANKS)
def test_what_is_said_of_a_fault_on_ranks_names_it_and_its_place(name: str) -> None:
    verify(name, run(name, Random(some_seed())))


@pytest.mark.parametrize('name', [*ON_THREADS, *(pytest.param(name, marks=pytest.mark.slow) for name in ON_RANKS)])
def test_of_the_same_run_without_its_fault_nothing_is_said(name: str) -> None:
    outcome = run(name, Random(some_seed()), fault=False)
    assert outcome.message == ''
    counts = [sum(span.op.kind not in WAITS for span in row) for row in outcome.timeline.rows]
    assert min(counts) >= 6 and max(counts) - min(counts) <= 1   # all ranks and devices came to their end


def test_a_step_that_failed_shows_how_far_it_came() -> None:
    outcome = run('out-of-memory', Random(some_seed()))
    row = outcome.timeline.rows[outcome.where['device']]
    failed = re.search(r'of micro-batch \d \((\w\d)\)', outcome.message)[1]
    done = [str(span.op) for span in row if span.op.kind not in WAITS]
    assert failed not in done and len(done) < 8


def test_every_module_of_a_fault_says_all_there_is_to_say() -> None:
    files = {path.stem for path in Path(failures.__file__).parent.glob('*.py')} - {'__init__', 'exchanging', 'pipelines', 'ranks'}
    assert files == {name.replace('-', '_') for name in FAULTS} and {*READS} == {*ON_THREADS, *ON_RANKS} == {*FAULTS}
    for name in FAULTS:
        fault = module(name)
        assert summary(name).endswith('?') and len(summary(name)) < 56
        for text in (fault.SIGN, fault.WHAT, fault.CHANGE):
            assert 40 < len(text) < 240 and '\n' not in text
        assert fault.WHAT.endswith('.') and fault.CHANGE.endswith('.') and not fault.SIGN.endswith('.')
    with pytest.raises(KeyError):
        module('pipelines')


# The command


def invoke(*arguments: object, given: str = ''):
    return CliRunner().invoke(workshop.build(['fail']), ['fail', *map(str, arguments)], input=given,
                              env={'COLUMNS': '100', 'NO_COLOR': '1'})


def seed_of(name: str) -> int:
    return next(seed for seed in itertools.count() if Random(seed).choice(FAULTS) == name)


def flat(text: str) -> str:
    return re.sub(r'[│\s]+', ' ', text)


def test_without_a_name_the_seven_are_listed_with_how_to_use_it() -> None:
    answer = invoke()
    assert answer.exit_code == 0 and 'fail NAME runs' in answer.output and '--quiz' in answer.output
    assert re.findall(r'^([a-z-]+)  +[A-Z].*\?', answer.output, re.MULTILINE) == [*FAULTS]


@pytest.mark.parametrize('name', ['wrong-loss-scale', 'Wrong_Loss'])
def test_a_fault_by_name_is_shown_explained_and_no_question_asked(name: str) -> None:
    answer = invoke(name)
    assert answer.exit_code == 0
    order = [answer.output.index(part) for part in (
        'wrong-loss-scale', 'CPU 0', 'The kit says:', 'gradients are', 'What it was:', 'What to change:')]
    assert order == sorted(order)


@pytest.mark.parametrize('given, is_right', [
    ('6\n', True), (' Wrong-Loss-Scale \n', True), ('wrong\n', True), ('1\n', False), ('forgotten-sync\n', False)])
def test_a_quiz_does_not_give_it_away_and_says_right_or_wrong_and_why(given: str, is_right: bool) -> None:
    seed = seed_of('wrong-loss-scale')
    answer = invoke('--quiz', seed, given=given)
    asked, _, told = answer.output.partition('7  forgotten-sync')
    assert 'wrong-loss-scale' not in asked.partition('1  straggler')[0] and 'gradients are' in asked
    assert answer.exit_code == (not is_right)
    assert ('Right: it is wrong-loss-scale' in told) == is_right and ('No: it is wrong-loss-scale' in told) != is_right
    assert 'What it was:' in told and f'--quiz {seed}' in asked
    if not is_right:
        assert told.count(' shows: ') == 2


def test_the_answer_is_told_at_once_where_it_is_asked_for() -> None:
    answer = invoke('--quiz', seed_of('straggler'), '--answer')
    assert answer.exit_code == 0 and 'It is straggler.' in answer.output and '1  straggler' not in answer.output


@pytest.mark.parametrize('arguments, given, sentence', [
    (['stragler'], '', 'there is no fault stragler; there are straggler, slow-link'),
    (['--quiz', 'straggler'], '', 'leave straggler out'),
    (['--quiz', '-3'], '', 'No such option'),
])
def test_what_cannot_be_meant_is_answered_with_what_can(arguments: list[str], given: str, sentence: str) -> None:
    answer = invoke(*arguments, given=given)
    assert answer.exit_code == 2 and sentence in flat(answer.output)


@pytest.mark.parametrize('given, sentence', [
    ('', 'no answer came'), ('8\n', "from 1 to 7 or a name, not '8'"), ('s\n', "not 's'"), ('\n', "not ''")])
def test_a_quiz_without_an_answer_ends_with_a_sentence(given: str, sentence: str) -> None:
    answer = invoke('--quiz', seed_of('wrong-loss-scale'), given=given)
    assert answer.exit_code == 2 and sentence in flat(answer.output)


def test_a_timeline_is_drawn_as_blocks_where_they_fit_and_as_letters_elsewhere() -> None:
    timeline = run('wrong-loss-scale', Random(some_seed())).timeline
    text = letters(timeline)
    assert all(len(line) <= 78 for line in text.splitlines()) and re.search(r'CPU 2 .*0.*a', text)
    assert drawn(Console(file=io.StringIO(), width=200), timeline) == text
    wide = drawn(Console(file=io.StringIO(), width=4000, force_terminal=True), timeline)
    assert 'F0' in str(wide) and 'backward' in str(wide)
    narrow = drawn(Console(file=io.StringIO(), width=10, force_terminal=True), timeline)
    assert narrow == text


@pytest.mark.slow
def test_in_a_terminal_it_asks_again_until_it_understands(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, '-P', '-m', 'fewgpu.workshop', 'fail', '--quiz', str(seed_of('wrong-loss-scale'))],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib'), 'COLUMNS': '80', 'TERM': 'xterm-256color'})
    os.close(theirs)
    seen, answers = '', [('Its number or name', 'what\r'), ('A number from 1 to 7', '6\r')]
    try:
        while True:
            seen += os.read(ours, 4096).decode(errors='replace')
            if answers and answers[0][0] in seen:
                os.write(ours, answers.pop(0)[1].encode())
    except OSError:   # it has ended
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0, seen
    assert 'Right' in seen and not answers


def children(parent: int) -> list[int]:
    """Processes that it has started and that still run."""
    found = []
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try:
            state, its_parent = stat.read_text().rpartition(')')[2].split()[:2]
        except OSError:   # it ended meanwhile
            continue
        if int(its_parent) == parent and state != 'Z':
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path('/proc/self/stat').exists(), reason='looks for processes in /proc')
def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, '-P', '-m', 'fewgpu.workshop', 'fail', 'forgotten-sync'], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib'), 'TMPDIR': str(tmp_path)})
    until = time.monotonic() + 60
    while len(ranks := children(process.pid)) < 3 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert len(ranks) == 3 and process.returncode == 130, said
    assert 'Traceback' not in said
    until = time.monotonic() + 60
    while any(Path(f'/proc/{rank}').exists() for rank in ranks) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f'/proc/{rank}').exists() for rank in ranks) and not [*tmp_path.iterdir()]


def test_a_closed_standard_input_gives_no_answer(monkeypatch):
    import typer
    from rich.console import Console

    from fewgpu.workshop.fail import _ask
    monkeypatch.setattr('sys.stdin', None)
    with pytest.raises(typer.BadParameter, match='no answer came'):
        _ask(Console(file=io.StringIO()))
