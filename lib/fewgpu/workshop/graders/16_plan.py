"""Grader of exercise 16. Laws: the bytes of the fullest device; the seconds of a step; the fastest plan that fits."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from fewgpu.planner import Block, Machines, settings
from fewgpu.workshop.graders import plan_costs, plan_search
from fewgpu.workshop.graders.plan_search import Counted, Task, TooManySteps
from fewgpu.workshop.graders.returns import check_returns
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Law, Suspect, close, judge
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.cluster import GPT, GPUS, Cluster, Plan
from fewgpu.workshop.practice.plain import number

FORBIDDEN = 'fewgpu.planner', 'fewgpu.simulate', 'fewgpu.workshop.plan'

MISCONCEPTIONS = {
    'rounded-down': 'the blocks of a stage are rounded down: where they do not divide, the first stage has one block '
                    'more',
    'part-of-a-block': 'a stage has a fraction of a block: a block is not cut, and the fullest stage has the whole of '
                       'it',
    'not-cut': 'each device is taken to hold all blocks; a stage has only its share of them',
    'width-divides': 'the replicas are taken to share the memory, but each holds its stage whole: data parallelism '
                     'saves no weights, and a micro-batch is as large as it was',
    'width-multiplies': 'the bytes of all replicas are added; each is on a device of its own',
    'all-micro-batches': 'the activations of all micro-batches are kept, as in GPipe; under 1F1B a stage has no more '
                         'of them on their way than there are stages',
    'more-than-there-are': 'there are as many micro-batches on their way as stages, even where the batch has fewer',
    'one-on-its-way': 'only one micro-batch is on its way: that is so on the last stage; the first keeps one for each '
                      'stage',
    'one-sample': 'a micro-batch is taken for one sample',
    'batch-of-all': 'the replicas are forgotten where the micro-batches are counted: each has only batch / width '
                    'samples',
    'state-forgotten': 'gradients and optimizer state are forgotten, and with Adam they are most of it',
    'recompute-ignored': 'recompute changes nothing: but the activations of micro-batches that wait are dropped',
    'nothing-again': 'the activations of the micro-batch that is being computed again are forgotten: they are needed '
                     'whole, once',
    'one-block-again': 'only one block is computed again at a time; here it is the whole stage',
    'input-once': 'the input of one micro-batch only is kept; each that is on its way has its own',
    'inputs-of-blocks': 'the inputs of all blocks are kept; of a micro-batch that waits there is only what goes into '
                        'the stage',
    'inputs-forgotten': 'the inputs are forgotten, and without them nothing can be computed again',
    'no-bubble': 'the bubble is forgotten: the last stage begins depth - 1 micro-batches late',
    'bubble-of-depth': 'the bubble is one micro-batch too long: the first stage does not wait, so it is depth - 1',
    'bubble-twice': 'the bubble counts twice: t has the forward and the backward in it already, and the way there and '
                    'the way back make one t a stage',
    'serial': 'one stage works at a time, as without a pipeline: micro-batches follow each other after one t',
    'no-start': 'the time to start is forgotten: that is what makes small micro-batches slow',
    'start-once': 'a stage starts only once; every block does, in each pass',
    'start-of-forwards': 'only the forward has a start; the backward of a block starts, too',
    'start-times-samples': 'the start is counted for every sample; it is once for a whole micro-batch',
    'recompute-free': 'recompute costs nothing: it is one more forward of every micro-batch',
    'backward-again': 'recompute runs the forward again, and not the backward',
    'recompute-doubles': 'recompute doubles everything, but only the forward runs twice',
    'no-start-again': 'the forward that is run again has to start again, too',
    'width-again': 'the time is divided by the width, which is in the number of micro-batches already',
    'no-messages': 'the messages between stages are forgotten',
    'one-way': 'there is one message, but what goes forward comes back as a gradient of the same size',
    'nobody-to-tell': 'there are messages even with one stage, which has nobody to send to',
    'messages-of-blocks': 'there are messages between the blocks of one stage, which are on one device',
    'message-once': 'the messages are sent once; there are two for every micro-batch',
    'no-all-reduce': 'the replicas never all-reduce, and would drift apart',
    'half-a-ring': 'that is half a ring: the sums go round once to be made, and once more to reach everybody',
    'root': 'the bytes grow with the number of replicas, as if one device talked to all; on a ring each sends 2 '
            '(width - 1) / width',
    'whole-each-way': 'the share (width - 1) / width is forgotten: on a ring everybody keeps one piece for itself',
    'whole-model': 'the gradients of the whole model are reduced, but a device has only those of its stage',
    'state-travels': 'the optimizer state travels, too; only gradients are summed, which have the size of the weights',
    'each-micro-batch': 'the gradients are reduced after every micro-batch; once at the end is enough',
    'too-deep': 'there are more stages than blocks: some would have nothing to do',
    'too-many-devices': 'the plan takes more devices than there are: a stage of every replica needs one, so that is '
                        'depth times width',
    'does-not-divide': 'width times micro_batch does not divide the batch: some samples are left over',
    'ignores-memory': 'the plan does not fit the devices: the fastest of all plans is no use',
    'nothing-fits': 'there is no plan that fits, and None is to say so',
    'gives-up': 'there is a plan that fits, and it is not found',
    'least-memory': 'that is the plan that needs the least memory; what fits is good enough, the fastest is wanted',
    'most-memory': 'that is the plan that fills the memory most, which need not be the fastest',
    'slowest': 'that is the slowest plan of all that fit',
    'first-that-fits': 'that is the first plan that fits; there are faster ones behind it',
    'all-devices': 'only plans that use all devices are tried; a few left idle may be faster, or divide at last',
    'divides-devices': 'only depths, or widths, that divide the number of devices are tried; some devices may be left '
                       'idle',
    'deepest': 'that is the deepest plan that fits: every stage more is more bubble',
    'widest': 'that is the widest plan that fits; replicas all-reduce, and may leave too little memory',
    'no-recompute': 'recompute is never tried, and it may be what lets a faster plan fit',
    'always-recompute': 'recompute is always on, and where the activations fit it only takes time',
    'smallest-micro-batch': 'the micro-batch is always one sample, and every one has to start anew',
    'powers-of-two': 'only powers of two are tried; other divisors are as good',
    'whole-stages': 'only depths that divide the blocks are tried; stages may differ by one block',
    'one-short': 'a range ends one too early, and the last of its numbers is never tried',
    'just-fits': 'what needs all of the memory, to the byte, fits, too',
    'one-more': 'every stage is given one block more than the quotient; where the blocks divide, that is one too many',
    'bubble-share': 'the share of the bubble is put on top of m, but (depth - 1) / (m + depth - 1) is its share of '
                    'the whole, bubble and all',
    'no-messages-in-bubble': 'the messages count m times and t counts m + depth - 1 times; the messages are part of t',
    'weights-forgotten': 'the weights themselves are forgotten: the state stays beside them',
    'too-many-steps': 'it tries what cannot be: for thousands of devices and samples that does not come to an end',
}

HINTS = {
    'activations': Hints(
        idea='Draw the first stage under 1F1B: how many Fs come before its first B? What if the batch has fewer '
             'micro-batches? And does a second replica take anything off this device?',
        place='`memory`: three numbers first: blocks of the first stage, micro-batches m, and how many are on '
              'their way.',
        outline='blocks = model.blocks / depth, rounded up\n'
                'm = batch / (width * micro_batch); on their way: the smaller of m and depth\n'
                'blocks * (weights + state) + on their way * micro_batch * blocks * activations'),
    'recompute': Hints(
        idea='A micro-batch waits for its backward. What does the stage need to compute everything again? And what is '
             'there while it does?',
        place='`memory`, with plan.recompute: two parts, what waits and what is computed again.',
        outline='waits: on their way * micro_batch * boundary\n'
                'again: the activations of all blocks of the stage, of one micro-batch'),
    'pipeline': Hints(
        idea='Without messages: what does one micro-batch cost a stage? When does the last stage get its first one? '
             'What happens more often with recompute?',
        place='`seconds`: t, then (m + depth - 1) times t.',
        outline='forward = blocks * (start + micro_batch * forward of a sample); backward likewise\n'
                't = forward + backward, and once more forward with recompute\n'
                '(m + depth - 1) * t'),
    'traffic': Hints(
        idea='What crosses the border between two stages, in which directions, how often? Which gradients does one '
             'device have after the step, and with whom does it share them?',
        place='`seconds`: the messages belong to t; the all-reduce comes once, at the end.',
        outline='t grows by 2 * micro_batch * boundary / bandwidth, if depth is more than 1\n'
                'at the end: 2 * (width - 1) / width * blocks of the stage * weights / bandwidth'),
    'legal': Hints(
        idea='Which four things make a plan possible? What is there to return if no plan is?',
        place='`best`: the ranges of your loops, and the test of the memory.',
        outline='depth from 1 to the blocks, and depth * width at most the devices\n'
                'width divides the batch, micro_batch divides batch / width\n'
                'keep a plan only if memory(...) <= cluster.memory; start with None'),
    'fastest': Hints(
        idea='Does your search try every possible plan, with recompute and without? What do you compare?',
        place='`best`: the comparison: seconds(...) of this plan with that of the best so far.',
        outline='for every possible plan: if it is faster than the best so far, it is the best now\n'
                'nothing is left out: not all devices need be used, any divisor is a micro-batch'),
    'large': Hints(
        idea='Of the 4,096 numbers from 1 on, how many divide 4,096? Which loop goes through all of them for nothing?',
        place='`best`: test whether a width divides before you go into the next loop; or make a list of divisors '
              'first.',
        outline='for each divisor of the batch that is a width:\n'
                '    for each divisor of batch / width that is a micro-batch:\n'
                '        for each depth up to devices / width'),
}


def judge_memory(work: Work, random: Random, *, recompute: bool, mistakes: list[str]) -> None:
    judge(plan_costs.cases(random, recompute=recompute),
          lambda case: number(work.memory(case.model, case.plan, case.batch)),
          lambda case: float(plan_costs.memory(case)),
          same=close, suspects=guesses(plan_costs.memory, mistakes), tell=partial(plan_costs.told, 'memory'),
          picture=lambda case, got, wanted: plan_costs.memory_drawn(case), lines=work.definition('memory'))


def judge_seconds(work: Work, random: Random, *, silent: bool, mistakes: list[str]) -> None:
    judge(plan_costs.cases(random, recompute=True, silent=silent),
          lambda case: number(work.seconds(case.model, case.cluster, case.plan, case.batch)), plan_costs.seconds,
          same=close, suspects=guesses(plan_costs.seconds, mistakes), tell=partial(plan_costs.told, 'seconds'),
          picture=lambda case, got, wanted: plan_costs.seconds_drawn(case), lines=work.definition('seconds'))


def guesses(price: Any, mistakes: list[str]) -> list[Suspect]:
    return [Suspect(mistake.partition(',')[0], lambda case, mistake=mistake: float(price(case, mistake)))
            for mistake in mistakes]


@check('memory: weights, state, and the activations of micro-batches on their way', points=2)
def activations(work: Work, random: Random) -> None:
    judge_memory(work, random, recompute=False, mistakes=[
        'rounded-down', 'part-of-a-block', 'not-cut', 'width-divides', 'width-divides, weights', 'width-multiplies',
        'all-micro-batches', 'more-than-there-are', 'one-on-its-way', 'one-sample', 'batch-of-all', 'state-forgotten',
        'weights-forgotten', 'one-more'])


@check('memory: with recompute only inputs wait', points=1, after=['activations'])
def recompute(work: Work, random: Random) -> None:
    judge_memory(work, random, recompute=True, mistakes=[
        'recompute-ignored', 'nothing-again', 'one-block-again', 'input-once', 'inputs-of-blocks', 'inputs-forgotten',
        'all-micro-batches', 'more-than-there-are', 'one-sample', 'rounded-down', 'not-cut', 'batch-of-all'])


@check('seconds: every stage computes, and the pipeline has a bubble', points=2)
def pipeline(work: Work, random: Random) -> None:
    judge_seconds(work, random, silent=True, mistakes=[
        'rounded-down', 'part-of-a-block', 'not-cut', 'one-more', 'no-bubble', 'bubble-of-depth', 'bubble-twice',
        'serial', 'bubble-share', 'no-start', 'start-once', 'start-of-forwards', 'start-times-samples', 'one-sample',
        'batch-of-all', 'recompute-free', 'backward-again', 'no-start-again', 'width-again', 'recompute-doubles'])


@check('seconds: two messages for a micro-batch, and one all-reduce', points=2, after=['pipeline'])
def traffic(work: Work, random: Random) -> None:
    judge_seconds(work, random, silent=False, mistakes=[
        'no-messages', 'one-way', 'nobody-to-tell', 'message-once', 'no-all-reduce', 'half-a-ring', 'root',
        'root, one way', 'root, all', 'whole-each-way', 'whole-each-way, once', 'messages-of-blocks',
        'whole-model', 'state-travels', 'each-micro-batch', 'no-messages-in-bubble'])


def judge_best(work: Work, tasks: list[Task], wrong: Any, suspects: list[Suspect]) -> None:
    judge(tasks, lambda task: plan_search.read(work.best(task.model, task.cluster, task.batch)),
          lambda task: Law(partial(wrong, task)), suspects=suspects, tell=plan_search.told,
          why=lambda task, got, law: law.broken(got), lines=work.definition('best'))


@check('best: a plan that is possible, or None', points=1, after=['activations', 'recompute', 'pipeline', 'traffic'])
def legal(work: Work, random: Random) -> None:
    check_returns(work.best, work.definition('best'))
    judge_best(work, plan_search.tasks(random), plan_search.impossible, plan_search.IMPOSSIBLE)


@check('best: no possible plan is faster', points=1, after=['legal'])
def fastest(work: Work, random: Random) -> None:
    judge_best(work, plan_search.tasks(random), plan_search.slower, plan_search.SLOWER)


LIMIT = 2_000_000   # divisions, products and comparisons of the batch's numbers; divisors alone take some ten thousand


@check('best: 2,048 devices, and a batch of 1,024', points=1, after=['fastest'])
def large(work: Work, random: Random) -> dict[str, str]:
    task = Task(replace(GPT, blocks=40), Cluster(devices=2048, memory=16e9, bandwidth=10e9), 1024)
    Counted.left = LIMIT
    try:
        got = plan_search.read(work.best(task.model, task.cluster, Counted(task.batch)))
    except TooManySteps as error:
        raise Failure(f'After {LIMIT:,} divisions, products and comparisons there was no answer.',
                      misconception='too-many-steps', lines=work.lines(error.__traceback__)[-1:],
                      case='best(model, Cluster(devices=2048, ...), batch=1024), 40 blocks') from None
    if wrong := plan_search.slower(task, got):
        raise Failure(wrong, case=plan_search.told(task, got, None), lines=work.definition('best'))
    return {'2,048 devices': f'{LIMIT - Counted.left:,} divisions, products and comparisons', **_compared(work)}


def _compared(work: Work) -> dict[str, str]:
    """With the kit's planner, whose pipeline has two weight versions and no bubble."""
    block = Block(lambda rows: rows * (GPT.forward + GPT.backward) + 2 * GPT.start, GPT.weights, GPT.activations,
                  GPT.boundary, GPT.state)
    found = settings([block] * GPT.blocks, Machines(16, GPUS.bandwidth, memory=GPUS.memory), 256)[0]
    theirs = Plan(found.depth, found.width, found.micro_batch, found.recompute)
    yours = work.best(GPT, replace(GPUS, devices=16), 256)
    return {'GPT, 2.1 billion parameters, 16 devices, batch 256': f'{plan_search.read(yours)}',
            "PipeDream-2BW's planner, no bubble, two versions": f'{theirs}'}
