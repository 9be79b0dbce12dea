"""Loading ahead: order, how far ahead, errors, and no thread that stays."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.ahead import Ahead


def running():
    return [thread for thread in threading.enumerate() if thread.name == 'fewgpu ahead']


@given(st.lists(st.integers(), max_size=12), st.integers(0, 4), st.integers(0, 3))
def test_items_come_in_order_each_through_all_steps(items, depth, steps):
    functions = [lambda value, k=k: (k, value) for k in range(steps)]
    expected = items
    for k in range(steps):
        expected = [(k, value) for value in expected]

    assert list(Ahead(items, *functions, depth=depth)) == expected
    assert not running()


@given(st.integers(1, 10), st.integers(0, 4), st.integers(1, 3))
def test_never_more_items_are_begun_than_the_depth_allows(count, depth, steps):
    begun = []

    def items():
        for k in range(count):
            begun.append(k)
            yield k

    for used, _ in enumerate(Ahead(items(), *[lambda value: value] * steps, depth=depth), 1):
        time.sleep(0.001)
        assert len(begun) <= used + depth


@pytest.mark.parametrize('depth', (1, 2, 3))
def test_so_many_items_are_begun_while_one_is_used(depth):
    begun = [threading.Event() for _ in range(depth + 1)]

    def load(k):
        begun[k].set()

    for _ in Ahead(range(depth + 1), load, depth=depth):
        assert all(event.wait(10) for event in begun)   # without being asked for
        break


@given(st.integers(0, 7), st.integers(0, 4), st.booleans())
def test_an_error_comes_where_its_item_is_asked_for_and_names_it(bad, depth, second):
    def step(k):
        if k == bad:
            raise OSError('no space left')
        return k

    slow = lambda k: time.sleep(0.001) or str(k)   # noqa: E731
    steps = [lambda k: k, step] if second else [step, slow]
    seen = []
    with pytest.raises(OSError, match='no space left') as raised:
        for k in Ahead(range(8), *steps, depth=depth):
            seen.append(k)

    assert [*map(int, seen)] == list(range(bad)) and all(isinstance(k, int if second else str) for k in seen)
    assert any(f'item {bad} ' in note for note in raised.value.__notes__)
    assert not running()


@given(st.integers(0, 4))
def test_an_error_of_the_items_is_raised_and_a_loop_may_be_run_again(depth):
    def items():
        yield 1
        raise KeyError('no more')

    seen = []
    with pytest.raises(KeyError) as raised:
        for value in Ahead(items(), depth=depth):
            seen.append(value)
    again = Ahead([1, 2, 3], str, depth=depth)

    assert seen == [1] and any('item 1 ' in note for note in raised.value.__notes__)
    assert list(again) == list(again) == ['1', '2', '3']
    assert not running()


@pytest.mark.parametrize('depth', (0, 1, 3))
def test_who_leaves_early_leaves_no_thread(depth):
    loaded = []
    for value in Ahead(iter(range(1000)), lambda k: loaded.append(k) or k, depth=depth):
        if value == 2:
            break

    assert len(loaded) <= 3 + depth + 1
    assert not running()


def test_a_depth_that_is_no_number_of_items_is_refused():
    with pytest.raises(ValueError, match='at least 0'):
        Ahead([], depth=-1)
    for wrong in (1.5, float('nan'), None, '1'):
        with pytest.raises(TypeError, match='the depth is a whole number'):
            Ahead([], depth=wrong)
