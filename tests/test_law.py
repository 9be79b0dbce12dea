"""The judge of answers: it fails exactly the wrong ones, shows the smallest case, and names only what explains them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.workshop.grading.grader import Failure, InCase
from fewgpu.workshop.grading.law import Suspect, close, equal, judge, shown

FUNCTIONS = {   # of a whole number
    'itself': lambda n: n,
    'half': lambda n: n // 2,
    'odd': lambda n: n % 2,
    'zero': lambda n: 0,
    'fails': lambda n: 1 // (n - 3),
}
names = st.sampled_from(sorted(FUNCTIONS))


def verdict(answer: str, truth: str, suspects: list[str], cases: range) -> Failure | InCase | None:
    try:
        judge(cases, FUNCTIONS[answer], FUNCTIONS[truth], suspects=[Suspect(name, FUNCTIONS[name]) for name in suspects],
              tell=lambda case, got, wanted: str(case))
    except (Failure, InCase) as failure:
        return failure
    return None


def results(name: str, cases: range) -> list[object]:
    def result(case: int) -> object:
        try:
            return FUNCTIONS[name](case)
        except ZeroDivisionError:
            return 'raises'
    return [result(case) for case in cases]


@given(names, names.filter(lambda name: name != 'fails'), st.lists(names, unique=True), st.integers(1, 8))
def test_judge_fails_what_differs_and_names_what_explains_it(answer: str, truth: str, suspects: list[str], count: int) -> None:
    cases = range(count)
    mine, right = results(answer, cases), results(truth, cases)
    failure = verdict(answer, truth, suspects, cases)
    wrong = [case for case in cases if mine[case] != right[case]]
    assert (failure is None) == (not wrong)
    if not wrong:
        return
    assert failure.case == str(wrong[0])
    explain_all = [name for name in suspects if results(name, cases) == mine]
    explain_wrong = [name for name in suspects if all(results(name, cases)[case] == mine[case] for case in wrong)]
    assert failure.misconception == [*explain_all, *explain_wrong, ''][0]


def test_nothing_returned_is_named_unless_a_suspect_explains_it() -> None:
    with pytest.raises(Failure) as caught:
        judge([1], lambda n: None, lambda n: n)
    assert caught.value.misconception == 'returns-nothing'


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), st.floats(1e-7, 1e3))
def test_close_allows_rounding_and_no_more(numbers: list[float], off: float) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    scale = max(float(tensor.abs().max()), 1.0)
    moved = tensor.clone()
    moved[0] += off * scale
    assert close(tensor * (1 + 1e-15), tensor) and not close(moved, tensor)
    assert not close(tensor.float(), tensor) and not close(numbers, tensor) and not close(tensor[None], tensor)
    assert close([numbers[0], tensor], (numbers[0], tensor)) and not close([tensor], [tensor, tensor])


@given(st.lists(st.integers(-9, 9)), st.lists(st.integers(-9, 9)))
def test_equal_is_equality_of_lists_and_tensors(one: list[int], other: list[int]) -> None:
    assert equal(tuple(one), other) == (one == other) == equal(torch.tensor(one), torch.tensor(other))
    assert not equal(torch.tensor(one), one) and not equal(one, torch.tensor(one))
    assert not equal(torch.tensor(one, dtype=torch.int32), torch.tensor(one, dtype=torch.int64))


@given(st.recursive(st.one_of(st.integers(), st.text(), st.none()), st.lists, max_leaves=40))
def test_shown_is_one_short_line(value: object) -> None:
    assert len(shown(value)) <= 60 and '\n' not in shown(value)
