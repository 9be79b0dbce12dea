"""`./workshop.py trace`: what it prints, draws and writes is the trace; what is none it refuses in a sentence."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fewgpu.causes import Causes
from fewgpu.critical_path import critical_path
from fewgpu.plot.looks import LOOKS
from fewgpu.schedule import interleaved, one_f_one_b, with_messages, with_updates
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import WAITS, Timeline
from fewgpu.trace_advice import advise
from fewgpu.trace_files import write
from fewgpu.trace_merge import load
from fewgpu.workshop import __main__
from fewgpu.workshop.overview import IDLE, MOST_ROWS, overview
from fewgpu.workshop.trace import MOST_IN_PICTURE, _turns
from tests.pictures import faults
from tests.traces import FLUSHING, costs, ranks_of, schedules, simulated


def run(*arguments, **environment):
    return CliRunner().invoke(__main__.build(['trace']), ['trace', *map(str, arguments)],
                              env={'COLUMNS': '100', **environment})


def sentence(result):
    """What a refusal says, without the frame round it."""
    assert result.exit_code == 2 and not isinstance(result.exception, (ValueError, KeyError)), result.output
    return ' '.join(re.sub('[│╭╮╰╯─]', ' ', result.output).split())


def save(folder, stages=4, chunks=8, offsets=(3.0, 500.0, -20.0, 77.0), **price):
    plan = with_messages(with_updates(one_f_one_b(stages, chunks)))
    price = Costs(**{'F': [1e-3, 3e-3, 1e-3, 1e-3], 'B': 2e-3, 'U': 1e-4, 'latency': 2e-4, **price})
    traces = ranks_of(plan, price, offsets)
    for trace in traces.values():
        write(trace, folder)
    return plan, price, traces


def test_it_says_what_happened_and_what_to_change_first(tmp_path):
    plan, price, _ = save(tmp_path)
    result = run(tmp_path)

    assert result.exit_code == 0, result.output
    said = ' '.join(result.output.split())
    timeline = simulate(plan, price)
    assert '1f1b: 4 ranks, 4 stages, 8 micro-batches' in said
    assert f'Step: {1e3 * timeline.makespan:.3g} ms' in said
    shown = re.search(r'do not compute: (\S+)%', said)[1]
    assert float(shown) == pytest.approx(100 * timeline.bubble, abs=1.5)   # the clocks are not quite known
    assert 'Busiest: rank 1' in said and '520 s apart' in said
    factors = [float(factor) for factor in re.findall(r'(\d+\.\d\d)x with', said)]
    assert factors == sorted(factors, reverse=True) and len(factors) >= 2
    equal = timeline.makespan / simulate(plan, replace(price, F=sum(price.F) / 4)).makespan
    assert float(re.search(r'(\S+)x with equal stages: another balance', said)[1]) == pytest.approx(equal, abs=0.01)


def test_all_files_or_the_folder_are_the_same(tmp_path):
    _, _, traces = save(tmp_path)
    files = [tmp_path / name for name in traces]

    assert run(tmp_path).output == run(*files).output == run(*reversed(files)).output


def test_page_trace_events_and_picture_are_written(tmp_path):
    save(tmp_path / 'traces')
    page, events, picture = tmp_path / 'a.html', tmp_path / 'a.json', tmp_path / 'a.png'
    result = run(tmp_path / 'traces', '--html', page, '--chrome', events, '--picture', picture)

    assert result.exit_code == 0, result.output
    merged = load([tmp_path / 'traces'])
    assert page.read_text() == merged.timeline.to_html(title='1f1b: 4 ranks, 4 stages, 8 micro-batches')
    assert len([1 for event in json.loads(events.read_text())['traceEvents'] if event['ph'] == 'X']) == \
        sum(map(len, merged.timeline.rows))
    assert picture.read_bytes().startswith(b'\x89PNG')
    assert all(str(path) in result.output.replace('\n', '') for path in (page, events, picture))
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.html', 'a.json', 'a.png', 'traces']


def test_the_picture_shows_the_path_and_nothing_of_it_is_cut_off(tmp_path):
    from fewgpu.workshop.trace_picture import PATH, picture
    save(tmp_path)
    causes = Causes(load([tmp_path]))
    path = critical_path(causes)
    figure = picture(causes.merged.timeline, path, '1f1b', '30 ms, bubble 40%')

    line, = [each for each in figure.axes[0].collections if len(each.get_segments()) == len(path)]
    assert [tuple(map(tuple, segment)) for segment in line.get_segments()][-1][1][0] == pytest.approx(path[-1].end)
    assert 'critical path' in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert PATH not in {colour for look in LOOKS.values() for colour in (look.face, look.edge)}
    assert not faults(figure)


def test_what_cannot_be_merged_is_refused_in_a_sentence(tmp_path):
    folder, empty = tmp_path / 'traces', tmp_path / 'empty'
    save(folder)
    empty.mkdir()
    other = tmp_path / 'other'
    save(other)
    (tmp_path / 'cut.json').write_text((folder / 'rank-0.json').read_text()[:500])
    (tmp_path / 'nan.json').write_text(re.sub(r'\["F",0,0,[^,]*', '["F",0,0,NaN', (folder / 'rank-0.json').read_text()))
    (tmp_path / 'none.json').write_text('{"loss": 3}')
    (tmp_path / 'nothing.json').write_text('')
    some = [folder / f'rank-{rank}.json' for rank in range(4)]

    assert 'there is no trace in' in sentence(run(empty))
    assert 'missing: rank 1, 3. Add' in sentence(run(some[0], some[2]))
    assert 'both of rank 0' in sentence(run(*some, other / 'rank-0.json'))
    assert 'ends in the middle' in sentence(run(tmp_path / 'cut.json', *some[1:]))
    assert 'its times are none' in sentence(run(tmp_path / 'nan.json', *some[1:]))
    assert 'is no trace of a rank' in sentence(run(tmp_path / 'none.json'))
    assert 'is empty' in sentence(run(tmp_path / 'nothing.json'))
    assert 'there is no file' in sentence(run(tmp_path / 'gone'))
    assert 'there is no file' in sentence(run(Path('/dev/zero')))
    assert 'tells no format' in sentence(run(folder, '--picture', tmp_path / 'a.gif'))
    assert 'cannot write to --html' in sentence(run(folder, '--html', tmp_path / 'no' / 'a.html'))
    assert {path.name for path in tmp_path.iterdir()} == {'traces', 'empty', 'other', 'cut.json', 'nan.json',
                                                         'none.json', 'nothing.json'}


def test_a_clock_that_is_not_known_is_named(tmp_path):
    _, _, traces = save(tmp_path)
    last = traces['rank-3.json']
    write(replace(last, stamps={peer: {**both, 'sent': []} for peer, both in last.stamps.items()}), tmp_path)

    assert 'The clock of rank 3 is not known' in ' '.join(run(tmp_path).output.split())


def test_too_many_operations_for_a_picture_are_refused(tmp_path):
    save(tmp_path / 'traces', chunks=MOST_IN_PICTURE // 16)
    result = run(tmp_path / 'traces', '--picture', tmp_path / 'a.png')

    assert 'take --html' in sentence(result)[-200:] and not (tmp_path / 'a.png').exists()


@given(schedules(names=FLUSHING), st.data(), st.integers(40, 200), st.booleans())
def test_the_overview_keeps_to_the_width_and_shows_what_takes_long(plan, data, width, colour):
    timeline = simulated(plan, data.draw(costs(plan.stages))).timeline
    *lines, ruler, key = overview(timeline, width, colour=colour).plain.split('\n')

    assert all(len(line) <= width for line in (*lines, ruler)) and len(lines) == len(timeline.rows)
    gutter = lines[0].index(' ', len('device ')) + 2
    columns = width - gutter - 1
    for line, row in zip(lines, timeline.rows):
        for span in row:
            start, end = (time / timeline.makespan * columns for time in span[1:3])
            if span.op.kind not in WAITS and end - start >= len(str(span.op)) + 3:
                assert f'{span.op}' in line[gutter + int(start):gutter + int(end) + 2]
                assert f'{span.op.kind} {LOOKS[span.op.kind].label}' in key
        assert len(line) == gutter + columns


def test_an_overview_of_nothing_but_short_operations_shows_their_kinds():
    timeline = simulate(one_f_one_b(2, 2000), Costs(F=1.0, B=2.0))
    first, second, *_ = overview(timeline, 80, colour=False).plain.split('\n')

    assert set(first[10:78]) == set(second[10:78]) == {'B'}


def test_an_overview_of_many_devices_says_how_many_are_left_out():
    timeline = simulate(one_f_one_b(MOST_ROWS + 5, 2))

    assert '... and 5 more' in overview(timeline, 80, colour=True).plain
    assert IDLE in overview(timeline, 80, colour=True).plain
    assert overview(Timeline(timeline.rows[:1], ('x',)), 80, colour=False, unicode=False).plain.isascii()


@given(schedules(names=FLUSHING), st.data())
def test_the_turns_of_the_path_are_the_path(plan, data):
    path = critical_path(Causes(simulated(plan, data.draw(costs(plan.stages)))))
    turns = list(_turns(path))

    assert [link for _, links in turns for link in links] == path
    assert all(row == link.row for row, links in turns for link in links)


def test_a_device_with_several_stages_is_one_row(tmp_path):
    plan = with_messages(with_updates(interleaved(2, 4, v=2)))
    for trace in ranks_of(plan, Costs(F=1e-3, B=2e-3, latency=1e-4), [0.0, 9.0]).values():
        write(trace, tmp_path)
    result = run(tmp_path)

    assert result.exit_code == 0 and 'interleaved: 2 ranks, 4 stages, 4 micro-batches' in result.output
    assert advise(Causes(load([tmp_path])))
