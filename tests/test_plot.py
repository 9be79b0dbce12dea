"""Pictures tell what the data say: laws about the patches and labels that are drawn."""

import base64
import io
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from fewgpu import plot
from fewgpu.meter import Memory
from fewgpu.plot import curves, looks, spans
from fewgpu.schedule import Op, interleaved, one_f_one_b
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import WAITS, Span, Timeline

KINDS = ('F', 'R', 'B', 'I', 'W', 'send', 'recv')
seconds = st.floats(1e-7, 1e3)


@st.composite
def timelines(draw, most_devices=4):
    """Any timeline: rows of operations with gaps between them."""
    rows = []
    for device in range(draw(st.integers(1, most_devices))):
        clock, spans = 0.0, []
        for kind, micro_batch, gap, length in draw(st.lists(
                st.tuples(st.sampled_from(KINDS), st.integers(0, 40), seconds, seconds), min_size=1, max_size=6)):
            spans.append(Span(Op(kind, device, micro_batch), clock + gap, clock + gap + length))
            clock = spans[-1].end
        rows.append(tuple(spans))
    return Timeline(tuple(rows), tuple(f'CPU {device}' for device in range(len(rows))))


def rectangles(ax):
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


@given(timelines())
def test_every_span_is_drawn_once_at_its_time_in_its_row(timeline):
    ax = plot.timeline(timeline).axes[0]

    drawn = [(patch.get_gid(), patch.get_x(), patch.get_width(), patch.get_y() + patch.get_height() / 2)
             for patch in rectangles(ax) if patch.get_gid()]
    expected = [(f'{span.op} of stage {span.op.stage}', span.start, span.end - span.start, row)
                for row, spans in enumerate(timeline.rows) for span in spans]
    assert len(drawn) == len(expected)
    for (gid, x, width, y), (name, start, length, row) in zip(drawn, expected):
        assert gid == name
        assert (x, width, y) == pytest.approx((start, length, row))


@given(timelines())
def test_the_busy_share_of_every_device_stands_at_its_row(timeline):
    ax = plot.timeline(timeline).axes[0]

    written = {round(text.xy[1]): text.get_text() for text in ax.texts if 'busy' in text.get_text()}
    assert written == {row: f' {share:.0%} busy' for row, share in enumerate(timeline.busy_share)}


@given(timelines(), timelines())
def test_two_timelines_share_one_time_axis_that_holds_the_longer(one, other):
    first, second = plot.timelines({'simulated': one, 'measured': other}).axes

    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[1] == pytest.approx(max(one.makespan, other.makespan))
    assert [ax.get_title(loc='left') for ax in (first, second)] == ['simulated', 'measured']


@given(timelines())
def test_a_number_is_drawn_only_where_it_fits_into_its_operation(timeline):
    figure = plot.timeline(timeline)
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, 'get_renderer') else figure._get_renderer()
    numbers = [artist for artist in figure.axes[0].get_children() if isinstance(artist, spans.Inside)]
    drawn = []
    for number in numbers:
        number.draw(_Spy(renderer, number, drawn))

    assert len(numbers) == sum(span.op.kind not in WAITS for row in timeline.rows for span in row)
    for number in drawn:
        assert number.get_window_extent(renderer).width <= number.patch.get_window_extent(renderer).width


class _Spy:
    """A renderer that notes which text drew something."""

    def __init__(self, renderer, artist, drawn):
        self._renderer, self._artist, self._drawn = renderer, artist, drawn

    def draw_text(self, *args, **kwargs):
        self._drawn.append(self._artist)

    draw_path = draw_text   # texts with an outline are drawn as paths

    def __getattr__(self, name):
        return getattr(self._renderer, name)


@pytest.mark.parametrize('kinds', [('F', 'R', 'B'), ('F', 'I', 'W'), ('F', 'B', 'U')])
def test_kinds_differ_in_lightness_or_hatching_too(kinds):
    drawn = [looks.LOOKS[kind] for kind in kinds]
    for position, look in enumerate(drawn):
        for other in drawn[:position]:
            grey, other_grey = (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), to_rgb(one.face)))
                                for one in (look, other))
            assert abs(grey - other_grey) > 0.15 or look.hatch != other.hatch, (look.label, other.label)


@pytest.mark.parametrize('scale, unit', [(2.0, 's'), (0.02, 'ms'), (2e-5, 'µs')])
def test_the_time_axis_is_in_a_unit_of_its_size(scale, unit):
    ax = plot.timeline(Timeline(((Span(Op('F', 0, 0), 0.0, scale),),), ('CPU 0',))).axes[0]

    assert ax.get_xlabel() == f'time ({unit})'
    factor = {'s': 1.0, 'ms': 1e3, 'µs': 1e6}[unit]
    assert float(ax.xaxis.get_major_formatter()(scale, 0)) == pytest.approx(scale * factor)


def test_stages_that_share_a_device_are_told_apart():
    rows = tuple((Span(Op('F', stage, 0), 0.0, 1.0),) for stage in range(2))
    ax = plot.timeline(Timeline(rows, ('GPU 0', 'GPU 0'))).axes[0]

    assert [label.get_text() for label in ax.get_yticklabels()] == ['stage 0 on GPU 0', 'stage 1 on GPU 0']


@given(st.integers(1, 3), st.integers(1, 3))
def test_of_the_stages_on_a_device_the_later_lie_lower_and_none_leaves_its_row(devices, groups):
    timeline = simulate(interleaved(devices, devices * groups, v=3))
    ax = plot.timeline(timeline).axes[0]

    drawn = iter([patch for patch in rectangles(ax) if patch.get_gid()])
    for row, spans_of_row in enumerate(timeline.rows):
        places = {}
        for span in spans_of_row:
            patch = next(drawn)
            places.setdefault(span.op.stage, set()).add(patch.get_y())
            assert abs(patch.get_y() + patch.get_height() / 2 - row) + patch.get_height() / 2 <= spans.LANE / 2 + 1e-9
        assert all(len(ys) == 1 for ys in places.values())
        tops = [places[stage].pop() for stage in sorted(places)]
        assert tops == sorted(set(tops))


@given(timelines())
def test_makespan_and_bubble_stand_beside_the_title(timeline):
    ax = plot.timeline(timeline, title='a step', unit='units').axes[0]

    assert ax.get_title(loc='left') == 'a step'
    assert ax.get_title(loc='right') == f'makespan {timeline.makespan:.4g} units, bubble {timeline.bubble:.1%}'


def test_facts_that_have_no_room_beside_the_title_stand_above_it():
    figure = plot.timeline(simulate(one_f_one_b(2, 2)), title='a long title ' * 6)
    renderer = figure._get_renderer()
    figure.draw(renderer)

    title, facts = (getattr(figure.axes[0], name).get_window_extent(renderer) for name in ('_left_title', '_right_title'))
    assert not title.overlaps(facts) or facts.y1 > title.y1


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 10**10))
def test_memory_curves_step_to_what_lived_at_the_end_of_every_operation(stages, chunks, stash):
    timeline = simulate(one_f_one_b(stages, chunks), Costs(stash=stash))
    figure = plot.timeline(timeline)   # by itself it shows the curves, too
    ax = figure.axes[1]

    assert len(ax.collections) == stages and ax.get_xlim() == figure.axes[0].get_xlim()
    most = max(timeline.peak(device) for device in range(stages))
    for row, (curve, spans_of_row) in enumerate(zip(ax.collections, timeline.rows)):
        floor = row + curves.TALL / 2
        corners = {(round(x, 6), round((floor - y) / curves.TALL * most, 3)) for x, y in curve.get_paths()[0].vertices}
        assert {(round(span.end, 6), round(float(span.live), 3)) for span in spans_of_row} <= corners
    assert [text.get_text() for text in ax.texts] == [
        f' peak {looks.size(timeline.peak(device))}' for device in range(stages)]


def test_without_counted_bytes_there_are_no_curves_and_the_sentence_says_why():
    timeline = simulate(one_f_one_b(2, 2))

    assert len(plot.timeline(timeline).axes) == 1
    with pytest.raises(ValueError, match='no live bytes were counted'):
        plot.memory_curves(timeline)


@pytest.mark.parametrize('amount, counts, text', [
    (0, 'bytes', '0 B'), (999, 'bytes', '999 B'), (12_300, 'bytes', '12.3 kB'), (4.5e6, 'bytes', '4.5 MB'),
    (1.25e9, 'bytes', '1.25 GB'), (4, 'micro-batches', '4 micro-batches')])
def test_sizes_are_written_in_the_unit_that_suits_them(amount, counts, text):
    assert looks.size(amount, counts) == text


@pytest.mark.parametrize('nothing', [None, Timeline((), ()), Timeline(((), ()), ('CPU 0', 'CPU 1'))])
def test_without_a_run_the_sentence_says_what_to_do(nothing):
    with pytest.raises(ValueError, match='run a forward and a backward first'):
        plot.timeline(nothing)
    with pytest.raises(ValueError, match='run a forward and a backward first'):
        plot.timelines({'measured': nothing})


@given(st.dictionaries(st.text('abc', min_size=1), st.none() | st.floats(0.01, 1e5), min_size=1, max_size=6))
def test_bars_are_as_long_as_the_figures_and_carry_them(figures):
    ax = plot.bars(figures, notes={name: 'failed' for name, value in figures.items() if value is None}).axes[0]

    measured = {name: value for name, value in figures.items() if value is not None}
    lengths = [patch.get_width() for patch in rectangles(ax)]
    assert lengths == pytest.approx(list(measured.values()))
    assert [label.get_text() for label in ax.get_yticklabels()] == list(figures)
    assert [text.get_text().strip() for text in ax.texts] == [
        'failed' if value is None else f'{value:.1f}' for value in figures.values()]


devices = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**10)), max_size=5).map(
    lambda sizes: [Memory(f'CPU {index}', parameters, parameters + rest, parameters)
                   for index, (parameters, rest) in enumerate(sizes)])


@given(st.dictionaries(st.text('abc', min_size=1), devices, min_size=1, max_size=4))
def test_memory_bars_stack_parameters_and_the_rest_to_the_peak(memory):
    ax = plot.memory_bars(memory).axes[0]

    drawn = rectangles(ax)
    everything = [device for group in memory.values() for device in group]
    assert len(drawn) == 2 * len(everything)
    for device, parameters, rest in zip(everything, drawn[::2], drawn[1::2]):
        assert parameters.get_x() == 0 and parameters.get_width() == device.parameters
        assert rest.get_x() == device.parameters and rest.get_x() + rest.get_width() == device.peak
        assert parameters.get_y() == rest.get_y()
    heights = [(patch.get_y(), patch.get_y() + patch.get_height()) for patch in drawn[::2]]
    assert all(above[1] <= below[0] for above, below in zip(heights, heights[1:]))   # none overlaps


@pytest.mark.parametrize('suffix, start', [('png', b'\x89PNG'), ('svg', b'<?xml'), ('pdf', b'%PDF')])
def test_pictures_are_written_as_pixels_and_as_vectors(suffix, start):
    buffer = io.BytesIO()
    plot.timeline(Timeline(((Span(Op('R', 0, 3), 0.0, 1.0),),), ('CPU 0',)), title='x').savefig(
        buffer, format=suffix)

    assert buffer.getvalue().startswith(start)


def test_a_notebook_gets_an_image_from_a_figure():
    formatter = DisplayFormatter()
    data, metadata = formatter.format(plot.bars({'plain': 1.0}))

    assert base64.b64decode(data['image/png']).startswith(b'\x89PNG') if isinstance(data['image/png'], str) \
        else data['image/png'].startswith(b'\x89PNG')
    assert metadata['image/png']['width'] > 0


def test_pyplot_and_its_global_state_are_not_touched(tmp_path):
    code = ("import sys, fewgpu.plot as plot; plot.bars({'plain': 1.0}).savefig(sys.argv[1]);"
            "sys.exit('matplotlib.pyplot' in sys.modules)")

    subprocess.run([sys.executable, '-c', code, str(tmp_path / 'bars.png')], check=True)
    assert (tmp_path / 'bars.png').stat().st_size > 0
