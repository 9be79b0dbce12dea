"""What finds pictures that cannot be read, finds them; and the kit's own pictures can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Patch

from fewgpu import plot
from fewgpu.plot.looks import LOOKS, Picture
from fewgpu.schedule import gpipe, interleaved, one_f_one_b, with_recompute, zero_bubble
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import WAITS
from tests.pictures import faults


def empty():
    ax = Picture(figsize=(4, 3)).add_subplot()
    ax.set_axis_off()
    return ax


@given(st.floats(0.3, 0.5), st.floats(0.3, 0.7), st.floats(0.0, 0.01))
def test_text_over_text_is_found(x, y, apart):
    ax = empty()
    ax.text(x, y, 'one', fontsize=9)
    assert faults(ax.figure) == []
    ax.text(x, y + apart, 'two', fontsize=9)
    assert faults(ax.figure) == ["'one' and 'two' lie over each other"]


@given(st.floats(1, 20))
def test_small_text_is_found(size):
    ax = empty()
    ax.text(0.5, 0.5, 'a', fontsize=size)
    assert bool(faults(ax.figure)) == (size < 8)


@pytest.mark.parametrize('place', [(-1, 0.5), (1.1, 0.5), (0.5, 1.2), (0.5, -0.5)])
def test_text_beyond_the_edge_is_found(place):
    ax = empty()
    ax.text(*place, 'out there')
    assert faults(ax.figure) == ["'out there' is cut off at the edge"]


@given(st.sampled_from(['#ff0000', '#00ff00', '#0000ff']), st.booleans())
def test_series_of_one_lightness_are_found_unless_they_are_marked(colour, marked):
    grey = {'#ff0000': '#7f7f7f', '#00ff00': '#dcdcdc', '#0000ff': '#4c4c4c'}[colour]   # the same L*
    ax = empty()
    ax.legend(handles=[Patch(facecolor=colour, label='a'), Patch(facecolor=grey, hatch='//' if marked else '', label='b')])
    assert bool(faults(ax.figure)) != marked
    lines = empty()
    lines.plot([0, 0.5, 1], [0, 0.5, 1], color=colour)
    lines.plot([0, 0.5, 1], [1, 0.5, 0], color=grey, linestyle='--' if marked else '-')
    assert bool(faults(lines.figure)) != marked


def test_all_kinds_of_operations_are_told_apart():   # waits are thin lines, and need no colour
    ax = empty()
    ax.legend(ncols=2, fontsize=8, handles=[Patch(facecolor=look.face, hatch=look.hatch, label=kind)
                                            for kind, look in LOOKS.items() if kind not in WAITS])
    assert faults(ax.figure) == []


schedules = st.one_of(
    st.builds(gpipe, st.integers(1, 8), st.integers(1, 12)),
    st.builds(one_f_one_b, st.integers(1, 8), st.integers(1, 12)),
    st.builds(lambda n, m: with_recompute(gpipe(n, m), 'always'), st.integers(1, 8), st.integers(1, 12)),
    st.builds(zero_bubble, st.integers(2, 6), st.integers(6, 12)), st.builds(interleaved, st.just(4), st.just(8)))


@given(schedules, st.sampled_from([0, 10**6]))
def test_timelines_can_be_read(schedule, stash):
    timeline = simulate(schedule, Costs(F=1, B=2, stash=stash, input=stash))
    assert faults(plot.timeline(timeline, title='What each device does', unit='units')) == []
    assert faults(plot.timelines({'One': timeline, 'The other': timeline})) == []


names = st.text('abcdefgh ', min_size=1, max_size=14).map(str.strip).filter(bool)


@given(st.dictionaries(names, st.one_of(st.none(), st.floats(0, 1e4)), min_size=1, max_size=8))
def test_bars_can_be_read(figures):
    assert faults(plot.bars(figures, title='Samples a second')) == []


@given(st.dictionaries(names, st.lists(st.floats(0.1, 100), min_size=4, max_size=4), min_size=1, max_size=5),
       st.sampled_from(['', 'x', 'y', 'xy']))
def test_lines_can_be_read_and_show_the_figures(series, log):
    figure = plot.lines({name: ([1, 2, 4, 8], ys) for name, ys in series.items()}, x='devices', y='speed', log=log,
                        title='Speed')
    assert faults(figure) == []
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert drawn == series


def test_more_lines_than_can_be_told_apart_are_refused():
    with pytest.raises(ValueError, match='6 lines in one picture'):
        plot.lines({str(name): ([1], [1]) for name in range(6)})
