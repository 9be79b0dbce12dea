"""For the grader of exercise 07: the learner's two functions as a stage, and what torch's complaints mean there."""

from typing import Any

import torch

from fewgpu.workshop.graders.plays import MakeStage, paired
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.work import Work

MESSAGES = {   # of torch, and what they mean here
    'does not require grad and does not have a grad_fn': 'recompute-without-graph',
    'a leaf Variable that requires grad': 'leaf-in-place',
    'only Tensors of floating point': 'whole-numbers',
    'nference tensor': 'inference-mode',
    'One of the differentiated Tensors': 'frozen',
}


def learners(work: Work) -> MakeStage:
    """The two functions as a stage; one that is not written yet is missed only when it is called."""
    return paired(lambda *given: _called(work, 'forward', given), lambda *given: _called(work, 'backward', given))


def _called(work: Work, name: str, given: tuple) -> Any:
    """What a function returns. Raises Failure if it leaves torch with another grad mode than it found."""
    before = torch.is_grad_enabled()
    try:
        answer = getattr(work, name)(*given)
        if (after := torch.is_grad_enabled()) != before:
            raise Failure(misconception='grad-mode', lines=work.definition(name),
                          case=f'{name}(...)\ntorch.is_grad_enabled()\nyours     {after}\nexpected  {before}')
        return answer
    finally:
        torch.set_grad_enabled(before)
