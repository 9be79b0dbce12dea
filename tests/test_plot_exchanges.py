"""Pictures of collectives show what was recorded: cells in their places, what is new, an arrow a message."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import FancyArrowPatch, Rectangle

from fewgpu import plot
from fewgpu.plot.exchanges import TALL, written
from fewgpu.workshop.practice.ranks import run_ranks
from fewgpu.workshop.recorded import OPERATIONS, record
from tests.pictures import faults

recordings = st.builds(record, st.sampled_from([*OPERATIONS]), st.integers(2, 6))


def drawn(figure):
    """Cells by gid, in the order in which they were drawn, frames, and arrows."""
    patches = figure.axes[0].patches
    cells = [patch for patch in patches if isinstance(patch, Rectangle) and patch.get_gid()]
    frames = [patch for patch in patches if isinstance(patch, Rectangle) and not patch.get_gid()]
    return cells, frames, [patch for patch in patches if isinstance(patch, FancyArrowPatch)]


@settings(deadline=None, max_examples=15)
@given(recordings)
def test_exchanges_can_be_read(kept):
    assert faults(plot.exchanges(kept, title=f'{kept.name}, round by round')) == []


@pytest.mark.parametrize('ranks', [2, 4, 6])
def test_operations_beside_each_other_can_be_read(ranks):
    assert faults(plot.before_and_after([record(operation, ranks) for operation in OPERATIONS])) == []


@settings(deadline=None, max_examples=15)
@given(recordings, st.data())
def test_a_round_shows_both_grids_what_is_new_and_its_messages(kept, data):
    number = data.draw(st.integers(1, kept.rounds))
    figure = plot.exchanges(kept, [number])
    cells, frames, arrows = drawn(figure)
    before, after = kept.grids[number - 1], kept.grids[number]

    assert len(arrows) == sum(arrow.round == number for arrow in kept.arrows)
    flat = [cell for grid in (before, after) for row in grid for cell in row]
    assert len(cells) == len(flat)
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    for patch, cell in zip(cells, flat):
        middle = patch.get_x() + patch.get_width() / 2, patch.get_y() + TALL / 2
        assert texts[middle] == written(cell, len(before))
    changed = [old != new for old_row, new_row in zip(before, after) for old, new in zip(old_row, new_row)]
    places = [patch.get_xy() for patch, new in zip(cells[len(cells) // 2:], changed) if new]
    assert [frame.get_xy() for frame in frames] == places


@settings(deadline=None, max_examples=15)
@given(recordings)
def test_a_sum_is_the_darker_the_more_ranks_are_in_it(kept):
    cells, _, _ = drawn(plot.before_and_after([kept]))
    flat = [cell for grid in (kept.grids[0], kept.grids[-1]) for row in grid for cell in row]
    light = {len(cell): sum(patch.get_facecolor()[:3]) for patch, cell in zip(cells, flat)}
    assert [light[count] for count in sorted(light)] == sorted(light.values(), reverse=True)


def test_what_is_not_seen_in_the_rows_is_written_at_its_arrow():
    texts = [text.get_text() for text in plot.exchanges(record('reduce', 4)).axes[0].texts]
    assert texts.count('a13') == 1     # a partial sum, which its sender's row does not show
    texts = [text.get_text() for text in plot.exchanges(record('all-reduce', 4), [2]).axes[0].texts]
    assert texts.count('a12') == 2     # in the sender's row before and after, and not at the arrow
    texts = [text.get_text() for text in plot.exchanges(record('reduce-scatter', 4), [2]).axes[0].texts]
    assert {'c03', 'd01', 'a12', 'b23'} <= {*texts}


@pytest.mark.parametrize('rounds', [[0], [7], [1, 9]])
def test_rounds_that_are_not_there_are_refused(rounds):
    with pytest.raises(ValueError, match='all-reduce has the rounds 1 to 6'):
        plot.exchanges(record('all-reduce', 4), rounds)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 8), st.floats(0.0, 1.0), st.integers(1, 3))
def test_overlaps_show_every_stretch_of_computing_and_every_reduction(buckets, latency, runs):
    def step(rank):
        rank.work(3.0)
        started = []
        for gradients in torch.ones(8, 10).tensor_split(buckets):
            rank.work(float(len(gradients)))
            started.append(rank.start_all_reduce(gradients.clone()))
        for reduction in started:
            reduction.wait()

    run = run_ranks(step, [()] * 2, latency=latency, bandwidth=40.0)
    figure = plot.overlaps({f'run {number}': run for number in range(runs)})
    assert faults(figure) == []
    for ax in figure.axes:
        seen = [patch for patch in ax.patches if patch.get_gid()]
        spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in seen]
        expected = [*run.worked[0], *((reduction.begins, reduction.ends) for reduction in run.reductions)]
        assert len(spans) == len(expected)
        assert all(span == pytest.approx(other) for span, other in zip(spans, expected))
        assert ax.get_title(loc='right') == f'{run.makespan:.4g} units'
        names = [patch.get_gid() for patch in seen]
        assert names[1:] == [*(f'backward {layer}' for layer in reversed(range(buckets))),   # the last layer first
                             *(f'all-reduce {number}' for number in range(buckets))]
