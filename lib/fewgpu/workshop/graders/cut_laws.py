"""For the grader of exercise 15: the learner's cuts into shards, put to the test."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fewgpu.workshop.graders.shard_cuts import WRONG_CUTS, Chain, at_end, evenly, fitting, greedy, picture
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import Law, Like, Suspect, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import listed


def judge_cuts(work: Work, cases: list[Chain], wrong: Callable[[Chain, Any], str]) -> None:
    """Raise Failure unless nothing is wrong with the learner's cuts; `wrong` says what, in a sentence."""
    def tell(chain: Chain, got: Any, _: Law) -> str:
        yours = '' if isinstance(got, BaseException) else f'\nyours     {shown(got)}'
        return f'{chain}{yours}\nexpected  {next(fitting(chain))}'

    def ends(chain: Chain) -> Like:
        return Like(lambda got: got == sorted(set(got)) and (got[-1] == len(chain.weights) or got[0] == 0))

    def layers(chain: Chain) -> Like:
        return Like(lambda got: got and all(isinstance(each, (list, tuple)) for each in got))

    def refuses(chain: Chain) -> list[int]:
        if any(at_end(chain, weight, weight + work) for weight, work in zip(chain.weights, chain.working)):
            raise ValueError
        return greedy(chain, at_end)

    judge(cases, lambda chain: _cut(work, chain), lambda chain: Law(partial(wrong, chain)), tell=tell, suspects=[
        *(Suspect(*each) for each in WRONG_CUTS), Suspect('never-full', refuses), Suspect('ends-for-counts', ends),
        Suspect('layers-for-counts', layers),
        Suspect('evenly', lambda chain: Like(lambda got: got in [*evenly(chain)])),
    ], why=lambda chain, got, law: law.broken(got), picture=lambda chain, got, _: picture(chain, got),
        lines=work.definition('cut'))


def _cut(work: Work, chain: Chain) -> Any:
    return listed(work.cut(list(chain.weights), list(chain.working), chain.memory, chain.buffer))


def check_refused(work: Work, cases: list[Chain]) -> None:
    """Raise Failure unless chains with a layer that is too large raise ValueError."""
    for chain in cases:
        try:
            got = _cut(work, chain)
        except ValueError:
            continue
        raise Failure(misconception='no-error' if got is not None else 'returns-nothing', lines=work.definition('cut'),
                      case=f'{chain}\nyours     {shown(got)}\nexpected  ValueError', picture=picture(chain, got))
