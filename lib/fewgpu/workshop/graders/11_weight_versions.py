"""Grader of exercise 11. Laws: versions are counted; a backward meets its forward's weights; a delay of one update."""

from functools import partial
from random import Random

from fewgpu.workshop.graders import delayed, stashes, versions
from fewgpu.workshop.graders.returns import check_returns
from fewgpu.workshop.graders.versions import guess
from fewgpu.workshop.graders.wrong_stashes import WRONG
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Law, Suspect, close, judge
from fewgpu.workshop.grading.work import Work

FORBIDDEN = ('fewgpu.schedule', 'fewgpu.simulate', 'fewgpu.weights', 'fewgpu.stage', 'fewgpu.pipeline', 'fewgpu.run',
             'fewgpu.stash', 'fewgpu.ahead')

MISCONCEPTIONS = {
    'negative': 'that falls below 0 at the start: until the first update, everybody has version 0',
    'delay-reversed': 'the delay grows from stage to stage; it has to shrink: the first stage waits longest for a '
                      'gradient, and the last not at all',
    'delay-equal': 'all stages are equally far behind, but each takes its own newest weights here, and a later stage '
                   'has had more updates by then',
    'delay-of-stages': 'it is one update too far behind: what is missing are the micro-batches that are on their way '
                       'when the forward starts, one for each stage that comes after',
    'no-delay': 'nothing is behind: as if all updates of the micro-batches before had been made by now, but some of '
                'those are still on their way',
    'own-version': 'every stage takes its own newest version, so the micro-batch meets weights that never belonged '
                   'together: with this rule all stages take the same version',
    'last-decides': 'the last stage sets the version, but the version is fixed when a micro-batch enters, at stage 0, '
                    'which does not have the newer one yet',
    'by-micro-batch': 'it counts micro-batches, but there is one update for a whole group of them',
    'no-buffer': 'that is the version that the group before makes; when this group begins it is not there yet on all '
                 'stages, but the version before it is',
    'two-behind': 'that is one version too old: one group back is enough, as there are at least as many micro-batches '
                  'in a group as stages',
    'fraction': 'a version is a whole number: a group that has begun makes no update before it ends',
    'group-from-one': 'the groups begin one micro-batch too late or too early: micro-batches are counted from 0',
    'group-of-stages': 'a group is taken to have as many micro-batches as there are stages; it has per_update of them',
    'newest-in-backward': 'the backward takes the newest weights, and the forward had older ones: that is the '
                          'gradient of no single point',
    'in-place': 'the update writes into the very weights that forwards have got: there is only one version then, and '
                'those that are on their way meet it half-way',
    'one-slot': 'only the weights of the last forward are remembered, but several micro-batches are on their way',
    'wrong-order': 'weights are handed out in an order of their own (the oldest first, or the latest), but the '
                   'backwards come in any order: ask for the number',
    'two-only': 'only the newest version and the one before it are there, and a backward may need an older one',
    'frees-early': 'a version is let go at the first backward that has used it, and another micro-batch still needs '
                   'it',
    'never-updated': 'the update changes nothing: forwards go on with the weights from the start',
    'change-for-weights': 'what `update` gets is taken for the new weights; it has to be added to them',
    'from-the-start': 'each change is added to the weights from the start, and the changes before it are lost',
    'subtracts': 'the change is taken away; it has to be added',
    'keeps-all': 'no version is ever let go: memory grows with every update',
    'copy-each': 'every micro-batch keeps a copy of its own, but several may have used one version: it is there more '
                 'than once',
    'keeps-longer': 'more copies are there than anybody needs: a version is of use no longer than the last backward '
                    'that wants it',
    'fresh-gradient': 'the gradient is taken at the newest weights: so a group would have to wait for the update '
                      'before it, and the pipeline runs empty',
    'aliased': 'both versions are one and the same tensor, so writing into the newest changes the one before, too',
    'applied-to-old': 'the change is applied to the old weights, where the gradient was taken; that throws the update '
                      'in between away',
    'sum-not-mean': 'the gradients of a group are added and not averaged: the step grows with the size of the group',
    'every-micro-batch': 'each micro-batch makes an update of its own: one update for a group is asked for',
    'two-updates-old': 'the gradient is taken at weights that are two updates old; one is enough',
    'never-newer': 'all gradients are taken at the weights from the start: the older version has to move on with '
                   'every update',
    'first-at-newest': 'the second group takes its gradients at W(1), which is its newest version; it is W(0) for it, '
                       'too',
    'mean-of-all': 'the gradients are divided by the number of all micro-batches and not by that of a group',
    'divided-twice': 'the mean is divided by the size of the group once more',
    'uphill': 'it goes uphill: the gradient has to be taken away',
    'last-only': 'only the gradient of the last micro-batch of a group counts: the others are lost',
    'total-kept': 'the sum is not set back to zero when a group begins: old gradients count again',
    'returns-previous': 'that is the version before the newest: the last update is lost',
    'late-gradient': 'each gradient waits and is used one update later, so the last group is lost; the delay has to '
                     'be in the weights that it is taken at',
    'caller-changed': "the caller's weights are changed: they were to stay as they are",
    'asks-again': 'a gradient is computed more than once, and gradients are what takes the time',
    'keeps-versions': 'older versions are kept, though nobody asks for them any more',
    'keeps-gradients': 'the gradients of a whole group are kept at a time; a sum takes the memory of one',
}

HINTS = {
    'pipedream': Hints(
        idea='Take the row of a stage from the docstring and count the Us before F5. How many micro-batches before 5 '
             'have no U yet? Does that number depend on the stage?',
        place="`version`, for 'pipedream': micro-batches before this one, less those that are still on their way.",
        outline='on their way when a forward starts: one for each stage after this one\n'
                'updates = micro-batches before this one, less those on their way; at the start none'),
    'vertical_sync': Hints(
        idea='Who meets a micro-batch first? Which version has it got there?',
        place="`version`, for 'vertical sync': the stage does not matter any more.",
        outline='what the rule before gives for stage 0, whatever the stage is'),
    'double_buffered': Hints(
        idea='Write the numbers 0 to 11 and draw a line behind every fourth. In which group is micro-batch 9? Which '
             'updates are made when its group begins on stage 0, and which are surely made on all stages?',
        place="`version`, for '2bw': first the number of the group, then one less, but not below 0.",
        outline='group = micro-batch divided by per_update, without the rest\n'
                'version = group less one; for the first group 0'),
    'stashing': Hints(
        idea='Two forwards are on their way, with different weights. Now the backward of the first one comes: where '
             'are its weights? And what does `a += b` do to another name of the same tensor?',
        place='`Stash`: one thing for the newest weights, and a dict from micro-batch to what it has used.',
        outline='forward: the dict remembers the newest for this micro-batch; return it\n'
                'backward: what the dict has for this micro-batch\n'
                'update: a new tensor, the newest plus the change'),
    'copies': Hints(
        idea='Python lets a tensor go when no name and no container has it any more. Which of yours still has it?',
        place='`Stash.backward` has to forget, and `Stash.forward` must not copy: two names of one tensor cost '
              'nothing.',
        outline='forward: remember the tensor itself, no clone\n'
                'backward: take it out of the dict (pop) and return it'),
    'train': Hints(
        idea='Write down W(0), W(1), W(2), W(3) for the example, each with the weights at which its gradient was '
             'taken. Which two do you need while you compute the next?',
        place='`train`: two names, previous and newest; after a group both move on at once.',
        outline='previous = newest = weights\n'
                'for each group: sum the gradients at previous, divide by per_update\n'
                'together: previous becomes newest, newest becomes newest minus lr times the mean (a new tensor)'),
    'buffers': Hints(
        idea='When the group after the next begins, who needs W(t)? Who needs the gradient of one micro-batch when it '
             'is in the sum?',
        place='`train`: no list of versions and no list of gradients.',
        outline='total = zeros\nfor each micro-batch of the group: add its gradient to total\n'
                'two names for two versions, and no container that holds older ones'),
}

METHODS = {   # of a Stash, where such a misconception is written down
    'newest-in-backward': 'backward', 'wrong-order': 'backward', 'frees-early': 'backward', 'one-slot': 'forward',
    **dict.fromkeys(('in-place', 'never-updated', 'change-for-weights', 'from-the-start', 'subtracts'), 'update')}


@check('weight stashing: a forward meets the updates that its stage has made', points=1)
def pipedream(work: Work, random: Random) -> None:
    versions.judge_version(work, 'pipedream', versions.cases(random), versions.stashed, [
        guess('negative', lambda n, s, i, m: i - (n - 1 - s)),
        guess('delay-reversed', lambda n, s, i, m: i - s),
        guess('delay-equal', lambda n, s, i, m: i - (n - 1)),
        guess('delay-of-stages', lambda n, s, i, m: i - (n - s)), guess('no-delay', lambda n, s, i, m: i),
        guess('delay-equal', lambda n, s, i, m: i - n), guess('delay-reversed', lambda n, s, i, m: i - s - 1),
    ], versions.drawn())


@check('vertical sync: one version on all stages', points=1)
def vertical_sync(work: Work, random: Random) -> None:
    versions.judge_version(work, 'vertical sync', versions.cases(random), versions.synchronous, [
        guess('negative', lambda n, s, i, m: i - (n - 1)),
        guess('own-version', lambda n, s, i, m: i - (n - 1 - s)), guess('last-decides', lambda n, s, i, m: i),
        guess('delay-of-stages', lambda n, s, i, m: i - n), guess('delay-reversed', lambda n, s, i, m: i - s),
    ], versions.drawn(only=0))


@check('2bw: the version from before the last group, on all stages', points=1)
def double_buffered(work: Work, random: Random) -> None:
    versions.judge_version(work, '2bw', versions.cases(random, grouped=True), versions.double_buffered, [
        guess('negative', lambda n, s, i, m: i // m - 1), guess('no-buffer', lambda n, s, i, m: i // m),
        guess('two-behind', lambda n, s, i, m: i // m - 2), guess('by-micro-batch', lambda n, s, i, m: i - 1),
        guess('by-micro-batch', lambda n, s, i, m: i - m), guess('fraction', lambda n, s, i, m: i / m - 1),
        guess('group-from-one', lambda n, s, i, m: (i - 1) // m - 1),
        guess('group-from-one', lambda n, s, i, m: (i + 1) // m - 1),
        guess('own-version', lambda n, s, i, m: (i - (n - 1 - s)) // m),
        guess('fraction', lambda n, s, i, m: -(-i // m) - 1), guess('group-of-stages', lambda n, s, i, m: i // n - 1),
    ], versions.drawn(grouped=True))


@check('a backward gets the weights of its forward', points=2)
def stashing(work: Work, random: Random) -> None:
    check_returns(work.Stash.forward, work.definition('Stash'))
    check_returns(work.Stash.backward, work.definition('Stash'))
    try:
        judge(stashes.plays(random), lambda play: stashes.versions(work.Stash, play),
              lambda play: (play.truth(), False), tell=stashes.told, lines=work.definition('Stash'),
              suspects=[Suspect(name, partial(stashes.versions, wrong)) for name, wrong in WRONG])
    except Failure as failure:
        if failure.misconception in METHODS:
            failure.lines = work.definition(f'Stash.{METHODS[failure.misconception]}')
        raise


@check('of every version one copy, as long as it is of use', points=2, after=['stashing'])
def copies(work: Work, random: Random) -> dict[str, str]:
    with stashes.quick_collections():
        judge(stashes.plays(random), partial(stashes.copies, work.Stash),
              lambda play: Law(partial(stashes.wasteful, play)), suspects=[
                  *(Suspect('keeps-all', partial(stashes.made, kinds=kinds)) for kinds in ('U', 'F')),
                  Suspect('copy-each', partial(stashes.made, kinds='FB')),
                  Suspect('keeps-longer', lambda play: Law(lambda counts: ''))],
              tell=lambda play, got, law: f'order     {play.order:.60}', why=lambda play, got, law: law.broken(got),
              picture=lambda play, got, law: stashes.table(play, got, play.needed()), lines=work.definition('Stash'))
        most = [max(stashes.copies(work.Stash, stashes.Play(stashes.pipedream_row(4, stage, 8)))) for stage in range(4)]
    return {'copies on each of 4 stages': ', '.join(map(str, most))}


@check('2bw: the mean gradient, one update old, changes the newest weights', points=2)
def train(work: Work, random: Random) -> dict[str, str]:
    check_returns(work.train, work.definition('train'))
    cases, lines = delayed.trainings(random), work.definition('train')
    try:
        judge(cases, lambda case: case.by(work.train), lambda case: case.history()[-1],
              same=partial(close, tolerance=1e-6), tell=delayed.told, lines=lines,
              suspects=[Suspect(mistake.partition(',')[0], partial(delayed.mistaken, mistake=mistake))
                        for mistake in delayed.MISTAKES],
              picture=lambda case, got, wanted: delayed.picture(case))
    except Failure as failure:
        if failure.misconception == 'fresh-gradient' and all(case.is_aliased for case in cases):
            failure.misconception = 'aliased'
        raise
    delayed.verify_manners(cases, lines)
    return {f'loss of w²/2 after 20 updates, lr = {lr}': '{:.2g} at once, {:.2g} one update late'.format(
        *delayed.losses(work.train, lr, 20)) for lr in (0.5, 1.2)}


@check('2bw: two versions and one sum of gradients', points=1, after=['train'])
def buffers(work: Work, random: Random) -> dict[str, str]:
    groups, per_update = 12, 8
    counts = delayed.alive_at_each_gradient(work.train, groups, per_update)
    if max(counts) > delayed.ENOUGH:
        grows = counts[-per_update] - counts[per_update] >= groups // 2   # from group to group
        raise Failure(misconception='keeps-versions' if grows else 'keeps-gradients',
                      lines=work.definition('train'), case=(
                          f'{groups} groups of {per_update} micro-batches\ntensors as large as the weights at most\n'
                          f'yours     {max(counts)}\n'
                          f'expected  {delayed.ENOUGH} or less: two versions, a sum, a gradient'))
    return {'tensors as large as the weights': f'{max(counts)} at the most'}
