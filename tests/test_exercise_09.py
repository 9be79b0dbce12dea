"""The exercise and its solution are the plain script but for the marked steps, and start from the same."""

import re

import pytest
import torch

from fewgpu.workshop.strip import strip
from tests.scripts import EXERCISE, PLAIN, ROOT, SOLUTION, module, parse


@pytest.mark.parametrize('script', [EXERCISE, SOLUTION])
def test_same_seed_gives_the_weights_and_the_order_of_the_plain_script(script: str) -> None:
    flags = ['--arch', 'resnet18', '--samples', '40', '--batchsize', '16', '--seed', '7', '--balance_by', '9,5', '--devices', '2']
    theirs, mine = module(PLAIN), module(script)
    args, plain_args = parse(script, *flags), parse(PLAIN, *flags)
    weights, plain_weights = ({key: weight.cpu() for key, weight in script.build(flags)[0].state_dict().items()}
                              for script, flags in ((mine, args), (theirs, plain_args)))
    assert weights.keys() == plain_weights.keys()
    assert all(torch.equal(weights[key], plain_weights[key]) for key in weights)
    labels = [y for _ in range(2) for _, y in mine.load(args)[0]]
    plain_labels = [y for _ in range(2) for _, y in theirs.load(plain_args)[0]]
    assert [len(y) for y in labels] == [16, 16, 8] * 2
    assert all(map(torch.equal, labels, plain_labels))


def test_another_seed_gives_other_weights() -> None:
    built = [module(PLAIN).build(parse(PLAIN, '--arch', 'resnet18', '--seed', seed))[0] for seed in '12']
    assert not torch.equal(built[0][0].weight, built[1][0].weight)


def code(script: str) -> list[str]:
    """The lines of a script without its docstring, comments and blanks."""
    text = (ROOT / script).read_text(encoding='utf-8').split('"""', 2)[2]
    lines = (re.sub(r'\s*# .*', '', line) for line in text.splitlines())
    return [line for line in lines if line]


def test_exercise_is_its_solution_with_the_steps_taken_out() -> None:
    assert (ROOT / EXERCISE).read_text(encoding='utf-8') == strip((ROOT / SOLUTION).read_text(encoding='utf-8'))


def test_exercise_is_the_plain_script_but_for_imports_and_the_steps_to_do() -> None:
    plain, exercise = code(PLAIN), code(EXERCISE)
    assert [line for line in exercise if line not in plain and ' import ' not in line] == [
        '    args = arguments.parse(__doc__, pipeline=True)']
    assert [line for line in plain if line not in exercise] == ['    args = arguments.parse(__doc__)']


def test_solution_marks_the_five_steps_in_order() -> None:
    text = (ROOT / SOLUTION).read_text(encoding='utf-8')
    assert re.findall(r'# STEP (\d): ', text) == list('12345')
    assert re.findall(r'# TODO STEP (\d): ', (ROOT / EXERCISE).read_text(encoding='utf-8')) == list('12345')


def test_strip_keeps_what_is_not_marked_and_refuses_a_step_without_end() -> None:
    text = 'a\n  # STEP 1: do\n  # Hint: so\n  b\n  # a remark\n  # was: c\n  # was:   d\n  # END\n# END\ne'
    assert strip(text) == 'a\n  # TODO STEP 1: do\n  # Hint: so\n  c\n    d\n  # END\n# END\ne'
    assert strip(strip(text)) == strip(text)
    with pytest.raises(ValueError, match='STEP 1 of the solution has no END'):
        strip('# STEP 1: do\nb\n')
