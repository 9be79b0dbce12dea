"""Grader of exercise 08. Laws: the slowest stage; a cut, the best one, and by a way that ends for large models, too."""

from collections.abc import Callable
from functools import partial
from numbers import Integral
from random import Random
from typing import Any

from fewgpu.schedule import gpipe
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.graders.cuts import (Balance, Case, Counted, TooManySteps, all_cuts, best, drawn, is_best_by,
                                          least_slowest, no_cut, not_best, stage_costs)
from fewgpu.workshop.graders.wrong_cuts import (adds_up, at_shares, climbed, dealt_out, filled, halved, never_one_layer,
                                                same_numbers, split_slowest, within_whole)
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Law, Like, Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.chain import VGG16
from fewgpu.workshop.practice.plain import listed, number

FORBIDDEN = 'fewgpu.balance', 'fewgpu.partition', 'torchgpipe.balance'

MISCONCEPTIONS = {
    'same-start': 'every stage is counted from the first layer on, but a stage begins where the one before it has '
                  'ended',
    'last-layers': 'the last stage is left out',
    'balance-as-ends': '`balance` is taken for the layer at which each stage ends; it is how many layers each '
                       'stage has',
    'most-layers': 'the stage with the most layers is taken for the slowest; a few costly layers may take longer',
    'which-stage': 'that is the number of the slowest stage; its time is asked for',
    'average': 'that is an average, but all stages have to wait for the slowest',
    'all-layers': 'that is the time of all layers together; the stages work at the same time, and the pace is that of '
                  'the slowest alone',
    'costliest-layer': 'that is the costliest layer alone; a stage takes as long as all its layers together',
    'fastest': 'that is the time of the fastest stage, which has to wait for the slowest',
    'start-by-number': 'a stage is taken to begin at its number times its own layers, which is true only where all '
                       'stages have the same number of layers',
    'whole-numbers': 'fractions of a millisecond are lost: costs, or a limit that is searched for, are rounded (to '
                     'whole numbers, say), and cuts look equally good that are not',
    'ends-for-counts': 'the list says at which layer each stage ends; it has to say how many layers each stage has',
    'stage-of-layer': 'the list says for each layer in which stage it is; it has to say how many layers each '
                      'stage has',
    'empty-stage': 'some stages have no layer, or are missing: their devices are paid for and idle',
    'too-many-stages': 'there are more stages than were asked for',
    'lost-layers': 'some layers are in no stage: the model is not the same any more',
    'same-numbers': 'every stage has the same number of layers, whatever they cost',
    'filled-up': 'stages are filled up to the average one after the other: what is just too much or too little in '
                 'one is paid by the next, and the last has to take what is left',
    'dealt-out': 'the layers are dealt out by their cost and not as they follow each other: counts of such stages '
                 'do not cut the chain where it would be good',
    'halved': 'the chain is cut into two, and the parts again: the first cut is the best for two stages, and not for '
              'all of them',
    'climbed': 'layers are moved to a neighbour as long as a single move helps, and it may take several at once to '
               'get to the best cut',
    'reversed': 'the counts are those of the last stage to the first: the list has to be turned round',
    'one-and-rest': 'all stages but one have a single layer, whatever the layers cost: so it comes out if the times of '
                    'the stages are added, as the sum is the same for all cuts; the largest of them counts',
    'never-one-layer': 'no stage but the first has just one layer unless it must: a range ends one too early, and what '
                       'it leaves out may be the best',
    'least-variance': 'the stages vary least (or their squares have the least sum), but the pace is that of the '
                      'slowest alone, and another cut makes that one faster',
    'fastest-stage': 'the fastest stage is as slow as it can be, which says nothing about the slowest',
    'too-many-steps': 'it takes as many steps as there are cuts, or nearly: the same rest of the chain is solved '
                      'again and again, and for 200 layers that does not come to an end',
}

HINTS = {
    'slowest': Hints(
        idea='Write the layers side by side and draw a line behind every stage. What does each piece take? Which '
             'piece do all others wait for?',
        place='`slowest`: one loop over `balance` that remembers the layer at which the next stage begins.',
        outline='start = 0\n'
                'for each number of layers: the sum of costs[start:start + layers]; then start moves on by layers'
                '\n'
                'return the largest sum'),
    'legal': Hints(
        idea='A balance is a list of one count a stage. What do the counts add up to, and how small may one be?',
        place='`balance`: what you return. If you have ends, a count is an end minus the end before it.',
        outline='as many numbers as stages\n'
                'each at least 1: while you fill a stage, leave a layer for each stage to come\n'
                'the last stage takes all that is left'),
    'optimal': Hints(
        idea='Suppose that you know, for every beginning of the chain, its best cut into one stage less. Where '
             'can the last stage begin, and what would the slowest stage be then? (Or the other way round: given '
             'a limit of milliseconds, how many stages do you need?)',
        place='`balance`: for each `end`, the least over all `start` of max(best cut of the layers before start, '
              'cost of start to end).',
        outline='best cut into one stage: its sum, for every end\n'
                'once for each further stage, for every end: try each start; take the larger of what is before '
                'start and the sum of the new stage; keep the start with the least\n'
                'from the last end, walk back along the starts'),
    'effort': Hints(
        idea='Which question do you answer many times? The best cut of the layers from 17 on into 3 stages is the '
             'same, however the layers before 17 are cut.',
        place='`balance`: remember each answer (functools.cache, or a table by layer and stage). Sums of '
              'neighbours are differences of running sums.',
        outline='a table best[stage][end], filled row by row\n'
                'each cell looks at the row before it only: stages times layers times layers steps in all'),
}
HINTS['large'] = HINTS['effort']


def chains(random: Random) -> list[Case]:
    """Small enough to try all cuts of them, smallest first."""
    cases: list[Case] = [((2,), 1), ((1, 1), 1), ((1, 2), 2), ((3, 1, 1), 2), ((4, 1, 1, 2, 6), 2),
                         ((4, 1, 1, 2, 6), 3), ((0, 5, 0, 0), 2), ((0, 0, 0), 3), ((1, 5, 2, 3), 3),
                         ((6, 1, 1, 1, 1, 1), 3), ((1, 1, 5, 3, 3), 3), ((1, 5, 2, 1, 1), 3),
                         ((0.9, 0.9, 0.9, 1), 2), ((0.4, 0.4, 0.4, 0.4, 1), 2)]
    for layers in (4, 5, 6, 7, 8, 9):
        for stages in (2, 3, 4):
            cases.append((tuple(random.choice((0, 1, 1, 2, 3, 5, 8, 12)) for _ in range(layers)), stages))
            cases.append((tuple(round(random.uniform(0.1, 20), 1) for _ in range(layers)), stages))
    return sorted(cases, key=lambda case: (len(case[0]), case[1]))


@check('the slowest stage is the one with the largest sum', points=2)
def slowest(work: Work, random: Random) -> None:
    def by_ends(costs: tuple, balance: Balance) -> float:
        return max(sum(costs[start:end]) for start, end in zip([0, *balance], balance))

    cases = [(costs, random.choice(list(all_cuts(len(costs), stages)))) for costs, stages in chains(random)]
    judge(cases, lambda case: number(work.slowest(list(case[0]), list(case[1]))),
          lambda case: float(max(stage_costs(*case))), same=partial(close, tolerance=1e-6), suspects=[
              Suspect('same-start', lambda case: float(max(sum(case[0][:count]) for count in case[1]))),
              Suspect('last-layers', lambda case: float(max(stage_costs(*case)[:-1]))),
              Suspect('last-layers', lambda case: float(max([0, *stage_costs(*case)[:-1]]))),
              Suspect('balance-as-ends', lambda case: float(by_ends(*case))),
              Suspect('most-layers', lambda case: float(stage_costs(*case)[case[1].index(max(case[1]))])),
              Suspect('which-stage', lambda case: float(stage_costs(*case).index(max(stage_costs(*case))))),
              Suspect('average', lambda case: sum(case[0]) / len(case[1])),
              Suspect('all-layers', lambda case: float(sum(case[0]))),
              Suspect('costliest-layer', lambda case: float(max(case[0]))),
              Suspect('fastest', lambda case: float(min(stage_costs(*case)))),
              Suspect('start-by-number', lambda case: float(max(
                  sum(case[0][k * count:(k + 1) * count]) for k, count in enumerate(case[1])))),
              *(Suspect('whole-numbers', lambda case, each=each, all_=all_: float(all_(max(stage_costs(
                  [*map(each, case[0])], case[1]))))) for each, all_ in (
                      (int, int), (round, round), (float, int), (float, round))),
              Suspect('average', lambda case: float(max(cost / n for cost, n in zip(stage_costs(*case), case[1])))),
          ], lines=work.definition('slowest'), tell=lambda case, got, wanted: (
              f'slowest({shown(list(case[0]))}, {case[1]})\nyours     {shown(got)}\nexpected  {wanted:g}'))


def judge_cuts(work: Work, cases: list[Case], wrong: Callable[[Case, Any], str], suspects: list[Suspect],
               always: dict[str, Callable[..., bool]] | None = None) -> None:
    """`judge` for `balance`; `wrong(case, answer)` says what is wrong. If there are few cuts, a best one is shown.

    `always`: misconceptions that are certain only if `fits(costs, stages, answer)` in all cases, right ones included.
    """
    answers: dict[Case, Any] = {}

    def answer(case: Case) -> Any:
        answers[case] = listed(work.balance(list(case[0]), case[1]))
        return answers[case]

    def in_all(fits: Callable[..., bool]) -> Like:
        return Like(lambda _: answers.keys() == {*cases} and all(fits(*case, got) for case, got in answers.items()))

    def tell(case: Case, got: Any, _: Law) -> str:
        wanted = best(case) if len(case[0]) < 10 else f'a slowest stage of {float(least_slowest(*case)):g}'
        return f'balance({shown(list(case[0]))}, {case[1]})\nyours     {shown(got)}\nexpected  {shown(wanted)}'

    suspects = [*suspects, *(Suspect(name, lambda case, fits=fits: in_all(fits))
                             for name, fits in (always or {}).items())]
    judge(cases, answer, lambda case: Law(partial(wrong, case)), suspects=suspects, tell=tell,
          why=lambda case, got, law: law.broken(got), picture=lambda case, got, _: drawn(case, got),
          lines=work.definition('balance'))


@check('every stage has a layer, and every layer is in one stage', points=1)
def legal(work: Work, random: Random) -> None:
    def like(misconception: str, fits: Any) -> Suspect:
        return Suspect(misconception, lambda case: Like(lambda got: isinstance(got, list) and all(
            isinstance(count, Integral) for count in got) and fits(got, len(case[0]), case[1])))

    judge_cuts(work, chains(random), no_cut, [
        like('ends-for-counts', lambda got, layers, stages:
             got in [sorted(set(got) | {layers}), sorted(set(got) | {0, layers})]
             and len(got) in (stages, stages + 1)),
        like('ends-for-counts', lambda got, layers, stages:
             got == sorted(set(got) - {0, layers}) and len(got) == stages - 1),
        like('ends-for-counts', lambda got, layers, stages: got == sorted(set(got) | {0}) and len(got) == stages),
        like('stage-of-layer', lambda got, layers, stages:
             len(got) == layers and sorted(set(got)) == list(range(stages))),
        like('empty-stage', lambda got, layers, stages: sum(got) == layers and (
            len(got) < stages or len(got) == stages and min(got) == 0)),
        like('too-many-stages', lambda got, layers, stages: len(got) > stages and sum(got) == layers),
        like('lost-layers', lambda got, layers, stages: len(got) == stages and min(got) > 0 and sum(got) < layers),
        Suspect('dealt-out', lambda case: dealt_out(*case)),
    ], {'same-numbers': lambda costs, stages, got: got == same_numbers(costs, stages, rest='last has less')})


@check('no cut has a faster slowest stage', points=3, after=['legal'])
def optimal(work: Work, random: Random) -> None:
    def rule(misconception: str, cut: Callable[..., Balance], **options: Any) -> Suspect:
        return Suspect(misconception, lambda case: cut(*case, **options))

    def least(misconception: str, price: Any) -> Suspect:
        return Suspect(misconception, lambda case: Like(
            lambda got: not no_cut(case, got) and is_best_by(price, *case, got)))

    judge_cuts(work, chains(random), not_best, [
        *(rule('filled-up', filled, over=over, again=again)
          for over in ('over', 'under', 'near') for again in (False, True)),
        *(rule('filled-up', at_shares, near=near) for near in (False, True)),
        rule('dealt-out', dealt_out), rule('halved', halved), rule('halved', split_slowest), rule('climbed', climbed),
        least('least-variance', lambda times: sum(time * time for time in times)),
        least('fastest-stage', lambda times: -min(times)),
    ], {'same-numbers': lambda costs, stages, got: got in [
            same_numbers(costs, stages, rest=rest) for rest in ('first', 'last', 'all in last')],
        'reversed': lambda costs, stages, got: not not_best((costs, stages), got[::-1]),
        'one-and-rest': adds_up, 'never-one-layer': never_one_layer, 'whole-numbers': within_whole})


LIMIT = 2_000_000   # additions and comparisons; a table takes some ten thousand, all cuts of 40 layers 100 million


@check('40 layers in 8 stages take few steps', points=2, after=['legal'], seconds=8.0)
def effort(work: Work, random: Random) -> dict[str, str]:
    costs = [round(random.uniform(1, 100), 2) for _ in range(40)]
    Counted.left = LIMIT
    try:
        work.balance([Counted(cost) for cost in costs], 8)
    except TooManySteps as error:
        raise Failure(f'After {LIMIT:,} additions and comparisons there was no answer for 40 layers in 8 stages.',
                      misconception='too-many-steps',
                      case='balance([...40 layers...], 8)     15,380,937 cuts\n'
                           'balance([...200 layers...], 8)    2,203,959,847,089 cuts',
                      lines=work.lines(error.__traceback__)[-1:]) from None
    steps = LIMIT - Counted.left   # hardly any are seen where numpy or torch have taken the costs as plain numbers
    return {'40 layers in 8 stages': f'{steps:,} additions and comparisons of costs'} if steps > 100 else {}


@check('large models are cut as well as can be', points=2, after=['optimal', 'effort'])
def large(work: Work, random: Random) -> dict[str, str]:
    cases: list[Case] = [(tuple(VGG16), stages) for stages in (2, 4, 8)]
    cases += [(tuple(random.randrange(1, 1000) for _ in range(layers)), stages)
              for layers, stages in ((90, 1), (120, 5), (200, 8))]
    judge_cuts(work, cases, not_best, [])
    return {'VGG-16 in 4 stages, 8 micro-batches':
            f'a step takes {_step([10] * 4):.0f} ms with 10 layers for each stage, '
            f'{_step(listed(work.balance(list(VGG16), 4))):.0f} ms with your cut, {sum(VGG16):.0f} ms on one device'}


def _step(balance: Balance) -> float:
    """Milliseconds of a step by GPipe; a backward takes twice as long as a forward."""
    times = [float(time) / 8 for time in stage_costs(VGG16, balance)]
    costs = Costs(F=[time / 3 for time in times], B=[time * 2 / 3 for time in times])
    return simulate(gpipe(len(balance), 8), costs).makespan
