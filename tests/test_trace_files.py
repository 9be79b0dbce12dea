"""Laws of saved and merged traces: what was written is read, bad files are refused, clocks do not matter."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.causes import Causes
from fewgpu.critical_path import critical_path
from fewgpu.trace_advice import advise
from fewgpu.trace_figures import figures
from fewgpu.trace_files import LATEST, TraceError, read, write
from fewgpu.trace_merge import find, load, merge
from tests.traces import FLUSHING, costs, ranks_of, schedules, simulated

CLOCKS = st.floats(-1e4, 1e4)


@st.composite
def recorded(draw):
    """(the simulated step, the traces of its ranks by file)."""
    plan = draw(schedules(names=FLUSHING))
    price = draw(costs(plan.stages))
    offsets = draw(st.lists(CLOCKS, min_size=len(plan.rows), max_size=len(plan.rows)))
    return simulated(plan, price), price, ranks_of(plan, price, offsets)


@given(recorded())
def test_what_is_written_is_read(tmp_path_factory, case):
    _, _, traces = case
    folder = tmp_path_factory.mktemp('traces') / 'a' / 'b'
    for name, trace in traces.items():
        path = write(trace, folder)
        again = read(path)
        assert path == folder / name and again.rows == trace.rows
        assert {rank: {way: [*map(tuple, times)] for way, times in both.items()}
                for rank, both in again.stamps.items()} == trace.stamps
        assert replace(again, rows=(), stamps={}) == replace(trace, rows=(), stamps={}, meetings=[])
    assert {path.name for path in folder.iterdir()} == traces.keys()   # no part is left
    assert find([folder]) == [folder / name for name in traces]


@given(recorded())
def test_merged_the_ranks_have_one_clock_to_within_what_is_said(case):
    step, price, traces = case
    merged = merge(traces)

    assert merged.clocks.uncertainty <= price.latency * len(traces) + 1e-6 and not merged.clocks.unknown
    for rank, (row, true) in enumerate(zip(merged.timeline.rows, step.timeline.rows, strict=True)):
        assert [span.op for span in row] == [span.op for span in true]
        for span, other in zip(row, true):   # the earliest rank may be any: the start is as unsure
            assert abs(span.start - other.start) <= 2 * merged.clocks.uncertainty + 1e-6
            assert span.seconds == pytest.approx(other.seconds, abs=1e-6)


@given(recorded())
def test_merged_no_message_comes_before_it_left(case):
    causes = Causes(merge(case[2]))

    for number, sender in enumerate(causes.sender):
        if sender >= 0:
            assert causes.arrived[number] >= causes.spans[sender].start - 1e-6


@given(recorded(), st.lists(CLOCKS, min_size=8, max_size=8))
def test_whatever_the_clocks_show_the_merged_trace_is_the_same(case, shifts):
    _, _, traces = case
    before, moved = merge(traces), {}
    for (name, trace), shift in zip(traces.items(), shifts):
        rows = tuple(replace(row, spans=tuple(span._replace(
            start=span.start + shift, end=span.end + shift,
            arrived=None if span.arrived is None else span.arrived + shift) for span in row.spans))
            for row in trace.rows)
        stamps = {peer: {way: [(number, time + shift) for number, time in times] for way, times in both.items()}
                  for peer, both in trace.stamps.items()}
        moved[name] = replace(trace, rows=rows, stamps=stamps)
    after = merge(moved)

    for row, other in zip(before.timeline.rows, after.timeline.rows):
        assert [span.start for span in row] == pytest.approx([span.start for span in other], abs=1e-6)
    assert [link[:3] for link in critical_path(Causes(before)) if link.seconds > 1e-5] == \
        [link[:3] for link in critical_path(Causes(after)) if link.seconds > 1e-5]


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """A folder with the traces of two ranks, and what is in them."""
    from fewgpu.schedule import one_f_one_b, with_messages, with_updates
    from fewgpu.simulate import Costs
    folder = tmp_path_factory.mktemp('saved')
    traces = ranks_of(with_messages(with_updates(one_f_one_b(2, 3))), Costs(latency=0.1), [5.0, 700.0])
    for trace in traces.values():
        write(trace, folder)
    return folder, traces


@settings(max_examples=60)
@given(st.data())
def test_a_file_that_ends_in_the_middle_is_refused_wherever_it_ends(saved, tmp_path_factory, data):
    text = (saved[0] / 'rank-0.json').read_text()
    file = tmp_path_factory.mktemp('cut') / 'rank-0.json'
    file.write_text(text[:data.draw(st.integers(0, len(text) - 1))])

    with pytest.raises(TraceError, match='empty|ends in the middle|no JSON'):
        read(file)


def broken(path, change):
    """The file with one part changed: `change` is given all of it."""
    stored = json.loads(path.read_text())
    change(stored)
    return json.dumps(stored)


def span(stored):
    return stored['rows'][0]['spans'][2]


WRONG = {
    'no trace of a rank': lambda stored: stored.pop('format'),
    'version 99': lambda stored: stored.update(version=99),
    'its rank is missing': lambda stored: stored.pop('rank'),
    'not among its own': lambda stored: stored.update(rank=7),
    'its rows is missing': lambda stored: stored.update(rows=5),
    'no operation': lambda stored: stored.update(rows=[]),
    'its schedule has no name': lambda stored: stored.update(schedule={}),
    'stages is missing': lambda stored: stored['schedule'].update(stages='two'),
    'ranks are no list of different': lambda stored: stored.update(ranks=[0, 0, 1]),
    'time stamps is none': lambda stored: stored['stamps'].update({'1': {'sent': [[0, 'x']], 'came': []}}),
    'stamps of .x. are of no rank': lambda stored: stored['stamps'].update(x={}),
    'its meetings is missing': lambda stored: stored.pop('meetings'),
    'a part of it is no object': lambda stored: stored.update(rows=[3]),
    'operation 2 of rank 0 is none': lambda stored: stored['rows'][0]['spans'].__setitem__(2, ['F']),
    'operation 2 of rank 0 is none, or its times are': lambda stored: span(stored).__setitem__(3, float('nan')),
    'operation 2 .* or its times are none': lambda stored: span(stored).__setitem__(4, float('inf')),
    'operation 2 .*its times': lambda stored: span(stored).__setitem__(4, 10 * LATEST),
    'operation 2 .*times are none': lambda stored: span(stored).__setitem__(4, span(stored)[3] - 1),
    'operation 2 .*none': lambda stored: span(stored).__setitem__(3, 10 ** 400),
    'operation 2 of .*none': lambda stored: span(stored).__setitem__(0, None),
    'operation 2 of rank 0 .*none': lambda stored: span(stored).__setitem__(1, -3),
    'operation 2 of rank 0.*none': lambda stored: span(stored).__setitem__(14, -5),
    'operation 3 .* before the one before': lambda stored: stored['rows'][0]['spans'][3].__setitem__(3, -9.0),
}


@pytest.mark.parametrize('said', WRONG)
def test_what_is_wrong_with_a_file_is_said(saved, tmp_path, said):
    file = tmp_path / 'rank-0.json'
    file.write_text(broken(saved[0] / 'rank-0.json', WRONG[said]))

    with pytest.raises(TraceError, match=said) as caught:
        read(file)
    assert str(file) in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize('content, said', [
    (b'', 'is empty'), (b' \n', 'is empty'), (b'hello', 'no JSON'), (b'\xff\xfe\x00', 'no text|no JSON'),
    (b'[1, 2]', 'no trace of a rank'), (b'{}', 'no trace of a rank'), (b'null', 'no trace of a rank'),
    (b'[' * 100_000, 'nestings|ends in the middle'), (b'1' * 10_000, 'numbers'), (b'{"a": 1} {"b": 2}', 'no JSON')])
def test_what_is_no_trace_is_refused(tmp_path, content, said):
    file = tmp_path / 'rank-0.json'
    file.write_bytes(content)

    with pytest.raises(TraceError, match=said):
        read(file)


@settings(max_examples=100)
@given(st.data())
def test_whatever_is_changed_in_a_file_it_is_read_or_refused(saved, tmp_path_factory, data):
    stored = json.loads((saved[0] / 'rank-0.json').read_text())
    part, key = stored, None
    while key is None or isinstance(part[key], (dict, list)) and part[key] and data.draw(st.booleans()):
        part = part if key is None else part[key]
        key = data.draw(st.sampled_from([*part] if isinstance(part, dict) else [*range(len(part))]))
    part[key] = data.draw(st.sampled_from([None, True, -1, 0.5, 10**30, float('nan'), 'x', [], {}, [[]], [0, 1]]))
    folder = tmp_path_factory.mktemp('changed')
    (folder / 'rank-0.json').write_text(json.dumps(stored))
    (folder / 'rank-1.json').write_bytes((saved[0] / 'rank-1.json').read_bytes())
    try:
        causes = Causes(load([folder]))
        assert critical_path(causes) and advise(causes) is not None and figures(causes).makespan >= 0
    except TraceError as error:
        assert '\n' not in str(error)


def test_traces_that_do_not_belong_together_are_refused(saved):
    _, traces = saved
    (one, first), (two, second) = traces.items()
    other = replace(second, schedule={**second.schedule, 'name': 'gpipe'})
    for files, said in (({one: first}, 'of 2 ranks 1 are here; missing: rank 1'),
                        ({one: first, two: replace(second, run='b')}, 'different runs'),
                        ({one: first, two: replace(second, step=2)}, 'step 1, and .* of step 2'),
                        ({one: first, two: other}, 'not of the same pipeline'),
                        ({one: first, two: second, 'copy': first}, 'both of rank 0')):
        with pytest.raises(TraceError, match=said):
            merge(files)


def test_places_without_traces_are_refused(tmp_path):
    with pytest.raises(TraceError, match='there is no trace in .*save_trace'):
        load([tmp_path])
    with pytest.raises(TraceError, match='there is no .*nowhere'):
        load([tmp_path / 'nowhere'])
    with pytest.raises(TraceError, match='name the folder'):
        load([])


def test_a_trace_is_replaced_as_a_whole(saved, tmp_path, monkeypatch):
    _, traces = saved
    path = write(traces['rank-0.json'], tmp_path)
    before = path.read_bytes()
    wrong = replace(traces['rank-0.json'], schedule={'name': {1, 2}})

    with pytest.raises(TypeError):   # half-way
        write(wrong, tmp_path)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ['rank-0.json']
    assert re.fullmatch(rb'\{.*\}', before, re.DOTALL)
