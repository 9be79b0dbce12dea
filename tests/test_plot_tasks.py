"""A picture of tasks tells who did which step of which item when: laws about its bars and labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu import plot
from fewgpu.plot.spans import LANE
from fewgpu.plot.tasks import LOOKS
from tests.pictures import faults

STEPS = ('load', 'add noise', 'detect edges', 'save')
seconds = st.floats(1e-3, 1e3)


@st.composite
def works(draw):
    """Any work: tasks of a few workers, one after the other with gaps."""
    done = []
    for worker in range(draw(st.integers(1, 4))):
        clock = 0.0
        for step, item, gap, length in draw(st.lists(
                st.tuples(st.sampled_from(STEPS), st.integers(0, 40), seconds, seconds), min_size=1, max_size=6)):
            done.append(plot.Task(worker, step, item, clock + gap, clock + gap + length))
            clock = done[-1].end
    return done


def bars(ax):
    return [patch for patch in ax.patches if patch.get_gid()]


@given(works())
def test_every_task_is_a_bar_at_its_time_in_its_workers_row(done):
    ax = plot.tasks(done).axes[0]

    drawn = [(bar.get_gid(), bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in bars(ax)]
    assert [gid for gid, *_ in drawn] == [f'{task.step} {task.item}' for task in done]
    for (_, *place), task in zip(drawn, done):
        assert place == pytest.approx([task.start, task.end - task.start, task.worker])


@given(works())
def test_a_step_has_one_look_and_no_two_steps_the_same(done):
    ax = plot.tasks(done).axes[0]

    looks = {}
    for bar, task in zip(bars(ax), done):
        looks.setdefault(task.step, set()).add((bar.get_facecolor(), bar.get_hatch()))
    assert all(len(look) == 1 for look in looks.values())
    assert len(set.union(*looks.values())) == len(looks)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*looks, 'idle']


@given(works())
def test_the_busy_share_of_every_worker_stands_at_its_row(done):
    ax = plot.tasks(done, worker='cook').axes[0]

    end = max(task.end for task in done)
    notes = [(round(text.xy[1]), text.get_text()) for text in ax.texts if 'busy' in text.get_text()]
    for row in range(1 + max(task.worker for task in done)):
        share = sum(task.end - task.start for task in done if task.worker == row) / end
        assert notes[row] == (row, f' {share:.0%} busy')
        assert ax.get_yticklabels()[row].get_text() == f'cook {row}'


@given(works())
def test_a_move_is_a_thin_bar_between_two_rows_and_makes_nobody_busy(done):
    moves = [task._replace(start=task.end, end=task.end + 1.0) for task in done]
    ax, plain = plot.tasks(done, moves=moves).axes[0], plot.tasks(done).axes[0]

    drawn = [bar for bar in bars(ax) if bar.get_gid().startswith('moving')]
    assert len(drawn) == len(moves) and len(bars(ax)) == len(bars(plain)) + len(moves)
    for bar, move in zip(drawn, moves):
        place = [bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2]
        assert place == pytest.approx([move.start, 1.0, move.worker + 0.5], abs=1e-9)
        assert bar.get_height() < 1 - LANE
    assert [text.get_text() for text in ax.texts] == [text.get_text() for text in plain.texts]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-2:] == ['moving', 'idle'] and 'moving' not in [
        text.get_text() for text in plain.get_legend().get_texts()]


@given(works(), st.sampled_from(['', 'units']))
def test_the_picture_can_be_read(done, unit):
    assert faults(plot.tasks(done, title='Four workers', unit=unit)) == []


def test_all_steps_that_are_drawn_can_be_told_apart_in_grey_and_more_are_refused():
    done = [plot.Task(0, f'step {number}', 0, number, number + 1) for number in range(len(LOOKS))]

    assert faults(plot.tasks(done)) == []
    assert faults(plot.tasks(done, moves=done[:1])) == []
    with pytest.raises(ValueError, match='7 steps in one picture cannot be told apart'):
        plot.tasks([*done, plot.Task(0, 'one more', 0, 9, 10)])


def test_without_a_task_the_sentence_says_so():
    with pytest.raises(ValueError, match='nothing was done'):
        plot.tasks([])
