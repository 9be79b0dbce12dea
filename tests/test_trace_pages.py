"""A timeline's page and its trace events say what the timeline says."""

import fnmatch
import html
import json
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu import trace_html
from fewgpu.schedule import Op, activation, interleaved, one_f_one_b, with_recompute
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import Span, Timeline

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
names = st.one_of(st.text(max_size=12), st.sampled_from(['GPU 0', '</script><b>', '<!--', '/*DATA*/']))
seconds = st.floats(1e-7, 1e3)


@st.composite
def timelines(draw):
    """Any timeline, with or without live bytes and weight versions, of any kinds and names."""
    rows = []
    for stage in range(draw(st.integers(1, 4))):
        clock, spans = 0.0, []
        for kind, micro_batch, gap, length, live, version in draw(st.lists(st.tuples(
                st.sampled_from('FRBIWU?'), st.integers(-1, 40), seconds, seconds,
                st.none() | st.integers(0, 2**40), st.none() | st.integers(0, 9)), max_size=6)):
            spans.append(Span(Op(kind, stage, micro_batch), clock + gap, clock + gap + length, live, version))
            clock = spans[-1].end
        rows.append(tuple(spans))
    return Timeline(tuple(rows), tuple(draw(names) for _ in rows))


@st.composite
def simulated(draw):
    """A schedule in virtual time: every micro-batch goes down all stages and up again."""
    stages, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    recompute = draw(st.sampled_from(('always', 'except_last', 'never')))
    return simulate(with_recompute(one_f_one_b(stages, chunks), recompute),
                    Costs(F=draw(st.floats(0.1, 3)), B=draw(st.floats(0.1, 3)), latency=draw(st.floats(0, 1)),
                          stash=draw(st.integers(0, 10**9))))


def data_of(page):
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


@given(timelines())
def test_the_page_holds_every_span_with_all_that_is_known_of_it(timeline):
    data = data_of(timeline.to_html())

    assert data['names'] == list(timeline.names) and data['makespan'] == timeline.makespan
    assert data['peaks'] == [timeline.peak(device) for device in range(len(timeline.rows))]
    for row, spans in zip(data['rows'], timeline.rows, strict=True):
        shown = zip((row['label'][which] for which in row['which']),
                    (row['kind'][which] for which in row['which']),
                    *(row[field] for field in ('stage', 'micro', 'start', 'end', 'live', 'version')))
        assert list(shown) == [(str(span.op), span.op.kind, span.op.stage, span.op.micro_batch, *span[1:])
                               for span in spans]


@given(timelines(), names)
def test_no_name_breaks_the_page_and_it_asks_for_nothing_outside(timeline, title):
    page, asset = timeline.to_html(title=title), ''.join(
        part.read_text(encoding='utf-8') for part in sorted(trace_html.PARTS.iterdir()))

    assert data_of(page)['title'] == title
    assert page.count('</script') == asset.count('</script')
    assert not re.search(r'https?:|\bsrc\s*=|\bhref\s*=|@import|fetch\(', asset)


@given(timelines())
def test_the_page_says_makespan_and_bubble_in_a_unit_that_suits_them(timeline):
    data = data_of(timeline.to_html())

    makespan = float(re.search(r'makespan (\S+) ', data['facts'])[1])
    assert makespan == pytest.approx(timeline.makespan * data['factor'], rel=1e-5, abs=1e-9)
    assert f'bubble {timeline.bubble:.1%}' in data['facts']
    assert data_of(timeline.to_html(unit='units'))['factor'] == 1.0


@given(timelines())
def test_every_kind_that_occurs_is_in_the_legend(timeline):
    data = data_of(timeline.to_html())

    shown = [look['label'] for look in data['legend']]
    kinds = {span.op.kind for row in timeline.rows for span in row}
    assert len(set(shown)) == len(shown)
    assert {data['looks'].get(kind, data['other'])['label'] for kind in kinds} <= set(shown)


def test_both_files_are_what_is_returned(tmp_path):
    timeline = simulate(one_f_one_b(2, 2))

    assert timeline.to_html(tmp_path / 'a.html') == (tmp_path / 'a.html').read_text(encoding='utf-8')
    assert timeline.to_chrome(tmp_path / 'a.json') == (tmp_path / 'a.json').read_text(encoding='utf-8')


def test_the_page_is_part_of_the_package():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))

    patterns = project['tool']['setuptools']['package-data']['fewgpu']
    for part in trace_html.PARTS.iterdir():
        assert any(fnmatch.fnmatch(f'{trace_html.PARTS.name}/{part.name}', pattern) for pattern in patterns)


def events_of(timeline, phase):
    return [event for event in json.loads(timeline.to_chrome())['traceEvents'] if event['ph'] == phase]


@given(timelines())
def test_the_trace_has_a_slice_a_span_and_a_thread_a_device(timeline):
    threads = {event['tid']: event['args'].get('name') for event in events_of(timeline, 'M')
               if event['name'] == 'thread_name'}
    assert threads == dict(enumerate(timeline.names))

    slices = events_of(timeline, 'X')
    spans = [(device, span) for device, row in enumerate(timeline.rows) for span in row]
    for event, (device, span) in zip(slices, spans, strict=True):
        assert (event['tid'], event['name'], event['cat']) == (device, str(span.op), span.op.kind)
        assert event['ts'] == pytest.approx(span.start * 1e6, abs=1e-3)
        assert event['dur'] == pytest.approx(span.seconds * 1e6, abs=2e-3)
        assert event['args']['stage'] == span.op.stage
        assert event['args'].get('weight version') == span.version


@given(timelines())
def test_slices_of_a_thread_do_not_overlap(timeline):
    for device in range(len(timeline.rows)):
        slices = [event for event in events_of(timeline, 'X') if event['tid'] == device]
        for one, following in zip(slices, slices[1:]):
            assert round((one['ts'] + one['dur']) * 1e3) <= round(following['ts'] * 1e3)


@given(timelines())
def test_live_bytes_are_counters_of_their_device(timeline):
    shown = [(event['tid'], event['args']['bytes']) for event in events_of(timeline, 'C')]

    assert shown == [(device, span.live) for device, row in enumerate(timeline.rows)
                     for span in row if span.live is not None]


@given(simulated())
def test_arrows_lead_every_micro_batch_from_slice_to_slice(timeline):
    slices = [(event['tid'], event['ts'], event['dur'], event['cat'], event['args'])
              for event in events_of(timeline, 'X')]

    def slice_at(arrow):
        found = [(cat, args['stage'], args['micro-batch']) for tid, ts, dur, cat, args in slices
                 if tid == arrow['tid'] and ts <= arrow['ts'] < ts + dur]
        return found[-1]   # the one before may end a rounding error after this one starts

    leaving = {arrow['id']: arrow for arrow in events_of(timeline, 's')}
    steps = Counter()
    for arrow in events_of(timeline, 'f'):
        kind, stage, micro_batch = slice_at(leaving.pop(arrow['id']))
        assert slice_at(arrow) == (kind, stage + (1 if kind == 'F' else -1), micro_batch)
        steps[kind] += 1
    assert not leaving
    chunks = len({span.op.micro_batch for span in timeline.rows[0]})
    assert steps['F'] == steps['B'] == chunks * (len(timeline.rows) - 1)


def test_waits_are_slices_too_and_no_arrows():
    wait = Span(Op('recv', 1, 0, activation(1, 0)), 0.0, 1.0)
    timeline = Timeline(((Span(Op('F', 0, 0), 0.0, 1.0),), (wait, Span(Op('F', 1, 0), 1.0, 2.0))), ('a', 'b'))

    assert [event['name'] for event in events_of(timeline, 'X')] == ['F0', 'F0<0', 'F0']
    assert len(events_of(timeline, 's')) == 1


DRIVER = '''
<pre id="result"></pre><script>
const press = (key, more) => document.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, ...more }));
const seen = { moments: [], spans: [] }, view = () => seen.spans.push([from, to]);
const point = (name, px, py, more) => { const box = chart.getBoundingClientRect();
  chart.dispatchEvent(new (name === 'wheel' ? WheelEvent : PointerEvent)(name, { clientX: box.left + px, clientY: box.top + py, cancelable: true, pointerId: 1, ...more })); };
addEventListener('load', () => setTimeout(() => {
  press('End'); press('Home'); seen.moments.push($('moment').textContent);
  for (let i = 1; i < moments.length; i++) { press('ArrowRight'); seen.moments.push($('moment').textContent); }
  press('ArrowRight'); seen.end = now; press('Home');
  view(); press('+'); view(); press('-'); view(); press('+'); press('+'); press('0'); view();
  const px = Math.round(gutter) + 100; seen.under = [at(px)]; point('wheel', px, 10, { deltaY: -100 }); seen.under.push(at(px)); view();
  press('ArrowRight', { shiftKey: true }); view(); press('0');
  draw(); point('pointermove', x(rows[0].start[0] + (rows[0].end[0] - rows[0].start[0]) / 2), 8);
  seen.tip = $('tip').hidden ? null : $('tip').textContent;
  point('pointermove', 2, 8); seen.away = $('tip').hidden;
  $('result').textContent = JSON.stringify(seen);
}, 50));
</script></html>'''


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='there is no Chromium here')
@pytest.mark.parametrize('schedule', [with_recompute(one_f_one_b(3, 4), 'always'), interleaved(2, 4)])
def test_in_a_browser_the_page_steps_zooms_and_explains(schedule, tmp_path):
    timeline = simulate(schedule, Costs(stash=10**6, input=10**6, latency=0.25))
    (tmp_path / 'page.html').write_text(timeline.to_html(unit='units').replace('</html>', DRIVER), encoding='utf-8')
    command = [CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={tmp_path / "profile"}',
               '--virtual-time-budget=5000', '--dump-dom', (tmp_path / 'page.html').as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    seen = json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)[1]))

    times = sorted({time for row in timeline.rows for span in row for time in span[1:3]})
    assert seen['moments'] == [moment(timeline, time) for time in times]
    assert seen['end'] == times[-1]   # a step beyond the end stays there
    everything, closer, back, again, wheeled, panned = seen['spans']
    assert everything == back == again == [0.0, timeline.makespan]
    assert closer[1] - closer[0] == pytest.approx(timeline.makespan / 1.5)
    assert seen['under'][0] == pytest.approx(seen['under'][1])   # the wheel zooms about the pointer
    assert wheeled[1] - wheeled[0] < timeline.makespan
    assert panned[0] > wheeled[0] and panned[1] - panned[0] == pytest.approx(wheeled[1] - wheeled[0])
    for said in ('F0  forward', 'device 0, stage 0', 'micro-batch 0', 'start 0 units', '1.000 MB', 'weight version 0'):
        assert said in seen['tip']
    assert seen['away']


def moment(timeline, time):
    """What the page should say that every device does."""
    def doing(row):
        span = next((span for span in row if span.start <= time < span.end), None)
        of = f' of stage {span.op.stage}' if span and len({one.op.stage for one in row}) > 1 else ''
        return f'{span.op}{of}' if span else 'idle'

    return f'At {time:g} units: ' + ', '.join(
        f'{name} {doing(row)}' for name, row in zip(timeline.names, timeline.rows))
