"""The planner's panel: its ranking keeps laws, its line tells why the others lose, its picture can be read."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.planner.known import KNOWN
from fewgpu.workshop.panel import _captioned
from fewgpu.workshop.panels import plans
from tests.pictures import faults

QUICK = ('alexnet', 'resnet50', 'bert-large')
clusters = st.tuples(st.sampled_from(QUICK), st.sampled_from((1, 2, 8, 16)), st.integers(2, 80), st.integers(1, 400))


@settings(max_examples=15)
@given(clusters)
def test_the_fastest_comes_first_and_what_does_not_fit_last(where: tuple) -> None:
    ranked = plans.ranking(*where)
    fitting = [one for one in ranked if one.fits]
    assert [one.fits for one in ranked] == [True] * len(fitting) + [False] * (len(ranked) - len(fitting))
    speeds = [one.samples_per_second for one in fitting]
    assert speeds == pytest.approx(sorted(speeds, reverse=True))
    assert all(one.why for one in ranked)


@settings(max_examples=15)
@given(clusters, st.integers(1, 3))
def test_more_memory_and_a_faster_network_harm_nobody(where: tuple, times: int) -> None:
    model, gpus, memory, link = where
    before = plans.ranking(*where)[0]
    changed = plans.ranking(model, gpus, times * memory, link), plans.ranking(model, gpus, memory, times * link)
    for after, *_ in changed:
        assert after.fits or not before.fits
        assert not before.fits or after.samples_per_second >= before.samples_per_second * (1 - 1e-9)


@settings(max_examples=10)
@given(clusters)
def test_the_line_names_the_fastest_and_what_each_of_the_others_loses_to(where: tuple) -> None:
    (first, *others), (_, said) = plans.ranking(*where), plans.draw(*where)
    if not first.fits:
        assert said.startswith('No way fits')
    else:
        assert said.startswith(f'Fastest: {first.name}, ')
        assert sum(map(int, re.findall(r'\((\d+)\)', said))) == len(others)


def test_a_cause_is_what_the_planner_says() -> None:
    by_name = {one.name: one for one in plans.ranking('gpt-2.2B', 64, 16, 25)}
    assert plans.cause(by_name['data parallel']) == plans.NO_ROOM and 'lacks' in by_name['data parallel'].why
    assert plans.cause(by_name['model parallel']) == plans.TURNS and 'at a time' in by_name['model parallel'].why
    assert plans.cause(by_name['plain, one device']) == plans.NO_ROOM
    assert plans.cause(by_name['ZeRO-1']).startswith('gradients')


@pytest.mark.parametrize('model', KNOWN)
@pytest.mark.parametrize('gpus, memory, link', [(1, 2, 1), (8, 16, 25), (64, 16, 1), (1024, 80, 400)])
def test_the_picture_can_be_read(model: str, gpus: int, memory: int, link: int) -> None:
    figure, said = plans.draw(model, gpus, memory, link)
    assert not faults(_captioned(figure, said))   # as where no sliders are shown
