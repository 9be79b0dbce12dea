"""`./workshop.py draw`: what the terminal, the files and the sentences say is the schedule."""

import csv
import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from fewgpu.schedule import SCHEDULES, stashes
from fewgpu.simulate import Costs, bubble_rate, simulate
from fewgpu.workshop import __main__
from fewgpu.workshop.blocks import WIDEST, blocks
from fewgpu.workshop.draw import make, show
from fewgpu.workshop.facts import facts, textbook


@st.composite
def plans(draw, most=4):
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    stages = draw(st.integers(1, most))
    chunks = stages * draw(st.integers(1, 3)) if name in ('interleaved', '2bw') else draw(st.integers(1, 12))
    return make(name, stages, chunks, recompute=draw(st.sampled_from(('always', 'except_last', 'never'))))


costs = st.builds(lambda f, b: Costs(F=f, B=b, I=b / 2, W=b / 2), st.floats(0.5, 3), st.floats(0.5, 6))


def run(*arguments, **environment):
    return CliRunner().invoke(__main__.build(['draw']), ['draw', *map(str, arguments)],
                              env={'COLUMNS': '100', **environment})


@given(plans(), costs)
def test_the_blocks_of_every_lane_are_its_operations_in_order(plan, price):
    drawn = blocks(simulate(plan, price), 100_000, colour=False)

    lines = iter(drawn.plain.splitlines())
    for device, row in enumerate(plan.rows):
        stages = sorted({op.stage for op in row})
        for stage in stages:
            line = next(lines)
            if len(stages) > 1:
                assert f'stage {stage} ' in line
            if stage == stages[0]:
                assert line.startswith(f'device {device} ')
            # Updates take no time here.
            assert re.findall(r'[FRBIW]\d+', line) == [str(op) for op in row
                                                       if op.stage == stage and op.kind != 'U']


@given(plans(), costs, st.integers(20, 300), st.booleans())
def test_blocks_keep_to_the_width_and_what_fits_fits_where_there_is_more_room(plan, price, width, colour):
    timeline = simulate(plan, price)
    drawn = blocks(timeline, width, colour=colour)

    if drawn is None:
        assert blocks(timeline, width // 2, colour=colour) is None
        return
    *lanes, ruler, key = drawn.plain.splitlines()
    assert all(len(line) <= width for line in lanes)
    assert len(lanes) == sum(len({op.stage for op in row}) for row in plan.rows)
    assert blocks(timeline, 2 * width, colour=colour) is not None


@given(plans(), costs)
def test_blocks_are_where_and_as_long_as_their_operations(plan, price):
    timeline = simulate(plan, price)
    *lines, ruler, _ = blocks(timeline, 100_000, colour=False).plain.splitlines()

    zero = ruler.index('0')
    scale = WIDEST / min(span.seconds for row in timeline.rows for span in row if span.op.kind != 'U')
    lanes = [(row, stage) for row in timeline.rows for stage in sorted({span.op.stage for span in row})]
    for line, (row, stage) in zip(lines, lanes, strict=True):
        for span in row:
            if span.op.stage == stage and span.op.kind != 'U':
                start, end = (zero + round(time * scale) for time in span[1:3])
                assert re.fullmatch(f'{span.op}─*', line[start:end])


@given(plans(), costs)
def test_the_textbooks_bubble_is_the_simulated_one(plan, price):
    if any(op.kind == 'R' for op in plan):
        return
    known = textbook(plan, price)
    timeline = simulate(plan, price)
    if known:
        bubble = bubble_rate(timeline) if plan.name.startswith('zb-') else timeline.bubble
        assert bubble == pytest.approx(known[1], abs=1e-9)
    else:
        assert plan.name.startswith('zb-') or plan.name == 'v-shape'


@given(plans(), costs)
def test_the_sentences_carry_the_figures(plan, price):
    timeline = simulate(plan, price)
    said = ' '.join(facts(plan, timeline, price, plain=False))

    assert f'Makespan {timeline.makespan:g} units' in said and f'{timeline.bubble:.1%}' in said
    assert 'Textbook' not in said
    kept = re.search(r'stashed at peak, ([^.]*)\.', said)[1].rpartition(': ')[2]
    figures = [int(figure) for figure in kept.split(', ')]
    assert figures in (stashes(plan), [max(stashes(plan))])
    assert ('Weight versions' in said) == (plan.name in ('pipedream', '2bw') and ' 2' in said.partition('Weight')[2])


@pytest.mark.parametrize('name', sorted(SCHEDULES))
def test_every_schedule_is_shown_and_written(name, tmp_path):
    done = run(name, '--stages', 3, '--chunks', 6, '--out', tmp_path / 'new')

    assert done.exit_code == 0, done.output
    assert str(make(name, 3, 6)) in done.output   # no terminal: the schedule as text
    written = {path.suffix: path for path in (tmp_path / 'new').iterdir()}
    assert set(written) == {'.svg', '.png', '.html', '.json'}
    assert all(str(path) in done.output for path in written.values())
    assert written['.png'].read_bytes().startswith(b'\x89PNG')
    assert json.loads(written['.json'].read_text())['traceEvents']


def test_variants_of_a_schedule_have_files_of_their_own(tmp_path):
    for arguments in (['gpipe'], ['gpipe', '--recompute', 'always'], ['interleaved'],
                      ['interleaved', '--v', 3]):
        assert run(*arguments, '--out', tmp_path).exit_code == 0
    assert len(list(tmp_path.glob('*.png'))) == 4


def terminal(width, colour):
    return Console(force_terminal=True, width=width, color_system='truecolor' if colour else None,
                   record=True, file=sys.stderr, highlight=False)


@pytest.mark.parametrize('colour', [True, False])
def test_a_terminal_shows_blocks_where_they_fit_and_else_the_order(colour):
    plan = make('1f1b', 4, 8)
    wide, narrow = terminal(80, colour), terminal(30, colour)
    for console in (wide, narrow):
        show(console, plan, simulate(plan))

    seen = wide.export_text()
    assert 'F forward' in seen and 'B backward' in seen and '|' not in seen
    assert all(len(line) <= 80 for line in seen.splitlines())
    seen = narrow.export_text()
    assert 'device 3 | F0 B0' in seen and 'too narrow' in seen
    assert all(len(line) <= 30 for line in seen.splitlines() if '|' in line)


@pytest.mark.parametrize('arguments, sentence', [
    (['1f2b'], 'there is no schedule 1f2b; choose from gpipe, 1f1b,'),
    (['1f1b', '--stages', 0], 'at least one stage'),
    (['gpipe', '--chunks', 0], 'one micro-batch'),
    (['interleaved', '--chunks', 6], 'multiple of 4'),
    (['2bw', '--chunks', 6], 'multiple of 4'),
    (['gpipe', '--recompute', 'some'], 'always, except_last, never, not some'),
    (['gpipe', '--forward', 0], 'more than 0 units'),
    (['gpipe', '--backward', 'inf'], 'more than 0 units'),
    (['gpipe', '--stages', 1000, '--chunks', 1000], 'more than can be shown'),
    (['gpipe', '--stages', 64, '--measure'], 'at most 16'),
    (['gpipe', '--latency', 1, '--measure'], '--measure takes the times that it measures'),
])
def test_what_cannot_be_drawn_is_one_sentence(arguments, sentence, tmp_path):
    done = run(*arguments, '--out', tmp_path, COLUMNS='400')

    assert done.exit_code == 2 and sentence in done.output, done.output
    assert 'Traceback' not in done.output and not list(tmp_path.iterdir())


def test_a_large_schedule_gets_a_page_but_no_picture(tmp_path):
    done = run('1f1b', '--stages', 32, '--chunks', 256, '--out', tmp_path)

    assert done.exit_code == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {'.html', '.json'}


@pytest.mark.slow
@pytest.mark.parametrize('arguments', [['1f1b'], ['zb-h1', '--recompute', 'always'], ['interleaved']])
def test_a_run_is_held_against_its_prediction_operation_by_operation(arguments, tmp_path):
    done = run(*arguments, '--measure', '--stages', 2, '--chunks', 4, '--out', tmp_path)

    assert done.exit_code == 0, done.output
    for said in ('predicted', 'measured', 'makespan', 'bubble', 'forward', 'peak', 'CPU 1'):
        assert said in done.output
    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(written) == {'.svg', '.png', '.html', '.csv'}
    with written['.csv'].open(newline='') as file:
        rows = list(csv.DictReader(file))
    plan = make(arguments[0], 2, 4, recompute=arguments[-1] if len(arguments) > 1 else 'never', update=1.0)
    assert [(row['op'], int(row['stage']), int(row['micro-batch'])) for row in rows] == [op[:3] for op in plan]
    for device in ('CPU 0', 'CPU 1'):
        peaks = [max(float(row[f'{what} live bytes']) for row in rows if row['device'] == device)
                 for what in ('predicted', 'measured')]
        assert peaks[0] == pytest.approx(peaks[1], rel=0.25)
