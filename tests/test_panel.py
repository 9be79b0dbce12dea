"""Laws of a panel: what draw gives for the values of its controls is what is seen, whoever moved them."""

import io
import sys
from html import escape

import ipywidgets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread

from fewgpu.plot.looks import shown
from fewgpu.workshop.panel import WIDGET, Choice, Panel, Slider
from tests.pictures import faults

NAMES, LETTERS = ('stages', 'cost', 'kind'), ('a', 'b', 'c')
START = {'stages': 4, 'cost': 0.5, 'kind': 'a'}


def draw(stages, cost, kind):
    """A picture, and a line, that no other values give."""
    figure = Figure(figsize=(1 + stages / 10, 1))
    figure.text(0.1, 0.5, f'{stages} {cost:g} {kind}', fontsize=8)
    return figure, f'<{stages}> & {cost:g}, {kind}'


def panel(draw=draw):
    return Panel(draw, stages=Slider(4, 1, 8), cost=Slider(0.5, 0, 2, 0.25),
                 kind=Choice('a', LETTERS, 'which one'))


def controls(panel):
    """Its widgets by the name of the argument, as they stand in the panel."""
    return dict(zip(panel.values, panel.widget().children[0].children, strict=True))


def line(panel):
    return panel.widget().children[1].value


def image(panel):
    return panel.widget().children[2]


def pixels(png):
    return imread(io.BytesIO(png)).tobytes()


VALUES = st.fixed_dictionaries({
    'stages': st.integers(1, 8), 'cost': st.integers(0, 8).map(lambda quarters: quarters / 4),
    'kind': st.sampled_from(LETTERS)})


def assert_it_shows(panel, values):
    figure, text = draw(**values)
    data, looks = shown(figure)
    assert panel.values == values == {name: widget.value for name, widget in controls(panel).items()}
    assert pixels(image(panel).value) == pixels(data['image/png'])
    assert image(panel).width == str(looks['image/png']['width'])
    assert line(panel) == f'<b>{escape(text)}</b>'
    assert panel.picture()[1] == text


@settings(max_examples=10)
@given(st.lists(st.tuples(VALUES, st.permutations(NAMES), st.booleans()), min_size=1, max_size=3))
def test_wherever_a_control_is_moved_from_the_panel_shows_what_draw_gives(moves):
    moved = panel()
    assert_it_shows(moved, START)
    for values, order, by_hand in moves:
        for name in order:
            if by_hand:
                controls(moved)[name].value = values[name]
            else:
                moved.set(**{name: values[name]})
        assert_it_shows(moved, values)


@settings(max_examples=5)
@given(VALUES)
def test_what_is_set_before_anybody_looks_is_what_is_seen(values):
    moved = panel()
    moved.set(**values)
    assert moved.values == values
    assert_it_shows(moved, values)


@pytest.mark.parametrize('name', NAMES)
def test_every_control_reaches_draw_under_its_own_name_and_alone(name):
    moved, other = panel(), {'stages': 7, 'cost': 1.25, 'kind': 'c'}
    before = image(moved).value
    moved.set(**{name: other[name]})
    assert_it_shows(moved, START | {name: other[name]})
    assert image(moved).value != before


def test_whole_numbers_stay_whole_and_a_slider_ends_where_it_is_said_to():
    got = []
    moved = Panel(lambda **values: got.append(values) or Figure(), stages=Slider(4, 1, 8),
                  cost=Slider(1, 0, 2, 0.5))
    sliders = controls(moved)
    assert {name: type(value) for name, value in got[-1].items()} == {'stages': int, 'cost': float}
    assert [(slider.min, slider.max, slider.step) for slider in sliders.values()] == [(1, 8, 1), (0, 2, 0.5)]
    moved.set(stages=8, cost=0)
    assert moved.values == got[-1] == {'stages': 8, 'cost': 0}


def test_labels_are_the_arguments_in_words_unless_others_are_given_and_none_is_cut_off():
    some = Panel(lambda **_: Figure(), micro_batches=Slider(4, 1, 8),
                 x=Slider(4, 1, 8, label='how much memory a GPU has'))
    widgets = [*controls(some).values()]
    assert [widget.description for widget in widgets] == ['micro batches', 'how much memory a GPU has']
    for widget in widgets:
        room, whole = (float(length.removesuffix('em')) for length in (widget.style.description_width,
                                                                       widget.layout.width))
        assert room > 0.6 * len(widget.description) and whole > room + 12   # and a slider beside it


def test_a_draw_that_raises_is_shown_in_place_of_the_picture_and_the_controls_go_on():
    def fragile(stages):
        if stages == 3:
            raise ValueError('no <3> stages')
        return draw(stages, 1, 'a')

    moved = Panel(fragile, stages=Slider(4, 1, 8))
    slider, = controls(moved).values()
    slider.value = 3
    assert line(moved) == 'ValueError: no &lt;3&gt; stages'
    assert image(moved).layout.visibility == 'hidden'   # which keeps its place on the page
    slider.value = 2
    assert image(moved).layout.visibility == 'visible'
    assert line(moved) == f'<b>{escape(draw(2, 1, "a")[1])}</b>'
    assert pixels(image(moved).value) == pixels(shown(draw(2, 1, 'a')[0])[0]['image/png'])


@settings(max_examples=5)
@given(VALUES)
def test_a_notebook_gets_the_widget_and_for_pages_without_widgets_the_picture(values):
    moved, without_line = panel(), panel(lambda **values: draw(**values)[0])
    moved.set(**values)
    without_line.set(**values)
    figure, text = draw(**values)
    expected, width = shown(figure)
    data, looks = without_line._repr_mimebundle_(include=None, exclude=None)
    assert pixels(data['image/png']) == pixels(expected['image/png']) and looks == width
    data, looks = moved._repr_mimebundle_(include=None, exclude=None)
    assert data.keys() == {WIDGET, 'image/png', 'text/plain'} and looks == width
    assert data['text/plain'] == text
    assert data[WIDGET] == {'version_major': 2, 'version_minor': 0, 'model_id': moved.widget().model_id}
    assert isinstance(moved.widget(), ipywidgets.VBox) and moved.widget() is moved.widget()


@pytest.mark.parametrize('layout', [None, 'constrained'])
def test_in_the_static_picture_the_line_has_room_of_its_own(layout):
    def draw(height: int) -> tuple[Figure, str]:
        figure = Figure(figsize=(4, height), layout=layout)
        figure.add_axes((0, 0, 1, 1)) if layout is None else figure.add_subplot()
        figure.axes[0].set_title('the title of the picture', loc='left', y=0.8 if layout is None else 1.0)
        figure.axes[0].set_axis_off()
        seen.append(figure)
        return figure, f'a line of text about {height} inches'

    seen: list[Figure] = []
    for height in (1, 3):
        Panel(draw, height=Slider(height, 1, 4))._repr_mimebundle_()
        assert faults(seen[0]) == []
        seen.clear()


def test_a_panel_without_a_line_is_named_by_its_values():
    data, _ = Panel(lambda stages: Figure(), stages=Slider(4, 1, 8))._repr_mimebundle_()
    assert data['text/plain'] == 'Panel(stages=4)'


@given(st.text().filter(lambda name: name not in NAMES))
def test_an_unknown_slider_is_refused_with_the_names_there_are(name):
    refused = panel()
    with pytest.raises(KeyError, match='there is no slider .*; there are stages, cost, kind'):
        refused.set(**{name: 1})
    assert refused.values == START


@pytest.mark.parametrize('control, message', [
    (Slider(9, 1, 8), 'goes from 1 to 8, and cannot be 9'), (Slider(1, 5, 2), 'the lower one first'),
    (Slider(1, 1, 2, 0), 'step be above 0'), (Choice('z', LETTERS), "one of 'a', 'b', 'c', and cannot be 'z'")])
def test_a_control_that_cannot_stand_there_is_refused(control, message):
    with pytest.raises(ValueError, match=message):
        Panel(draw, stages=control)


@given(st.one_of(st.integers(max_value=0), st.integers(min_value=9), st.text()))
def test_to_set_what_cannot_be_moves_nothing(value):
    moved = panel()
    with pytest.raises(ValueError, match='stages'):
        moved.set(cost=1.0, stages=value)
    assert moved.values == START


def test_without_ipywidgets_there_is_the_picture(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ipywidgets', None)
    data, _ = panel()._repr_mimebundle_()
    assert data.keys() == {'image/png', 'text/plain'}


def test_a_picture_that_fails_at_first_still_has_its_sliders():
    def fails(stages):
        if stages == 4:
            raise ValueError('not four')
        return draw(stages, 1, 'a')

    moved = Panel(fails, stages=Slider(4, 1, 8))
    data, _ = moved._repr_mimebundle_()
    assert data['text/plain'] == 'ValueError: not four' and 'image/png' not in data and WIDGET in data
    controls(moved)['stages'].value = 3
    assert line(moved) == f'<b>{escape(draw(3, 1, "a")[1])}</b>'


@pytest.mark.parametrize('at_once', [0.0, 60.0])
def test_a_slow_picture_is_redrawn_only_when_its_slider_is_let_go(monkeypatch, at_once):
    monkeypatch.setattr('fewgpu.workshop.panel.AT_ONCE', at_once)
    assert controls(panel())['stages'].continuous_update == (at_once > 0)
