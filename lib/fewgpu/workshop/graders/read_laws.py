"""For the grader of exercise 14: which law a forward or backward breaks first, and what is behind it."""

import math
from collections.abc import Callable

import torch

from fewgpu.workshop.graders.reads import (Scene, Went, is_misused, least_backward, least_forward, listed, plain,
                                           run_backward, run_forward)
from fewgpu.workshop.grading.grader import Failure, InCase
from fewgpu.workshop.grading.law import close
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.disk import DIGITS


def check_forward(work: Work, scenes: list[Scene]) -> None:
    """Raise Failure for the first scene in which the forward breaks a law about what it does."""
    all_went = [run_forward(work.forward, scene, scene.ahead + 1) for scene in scenes]
    for went in all_went:
        failure = _failure(work, 'forward', went)
        _raise_misused(went, failure, lambda: [run_forward(work.forward, each, math.inf) for each in scenes])
        if went.result is None:
            raise failure(misconception='returns-nothing')
    for scene, went in zip(scenes, all_went):
        failure = _failure(work, 'forward', went)
        _verify_each_once(went, failure, 'forward', list(range(scene.count)), list(range(scene.count)))
        _verify_value(went, failure, plain(scene)[0], 'the output', 'input-stays')
        there = sorted(handle.number for handle in went.machine.held)
        if there != scene.last:
            wanted = f'In memory are the layers {there} at the end; for the backward it should be {scene.last}.'
            raise failure(wanted, misconception='nothing-left' if set(there) < set(scene.last) else 'never-frees')
        own = {handle.number: handle for handle in went.machine.held}
        if not isinstance(went.handles, dict) or went.handles.keys() != own.keys() or any(
                went.handles[k] is not own[k] for k in own):
            if isinstance(went.handles, dict) and {*own} < {*went.handles}:
                raise failure(f'The dict has the layers {sorted(went.handles)}; in memory are {there}.',
                              misconception='freed-handles')
            raise failure(f'The second thing to return is a dict with the handles of the layers {there}.',
                          misconception='other-handles')


def check_backward(work: Work, scenes: list[Scene]) -> None:
    """As above, for the backward."""
    for scene in scenes:
        went = run_backward(work.backward, scene, scene.ahead + 1)
        failure = _failure(work, 'backward', went)
        order = list(reversed(range(scene.count)))
        reads = [k for k in order if k not in scene.last]
        if went.numbers('read') and went.numbers('read')[0] in scene.last:
            raise failure(f'It reads layer {went.numbers("read")[0]}, and the layers {scene.last} were there.',
                          misconception='reads-again')
        if len(reads) > 1 and went.numbers('read')[:len(reads)] == reads[::-1]:
            raise failure(f'It reads the layers {reads[::-1]}.', misconception='forward-order')
        _raise_misused(went, failure, lambda: [run_backward(work.backward, each, math.inf) for each in scenes])
        if went.result is None:
            raise failure(misconception='returns-nothing')
        _verify_each_once(went, failure, 'backward', order, reads)
        _verify_value(went, failure, plain(scene)[1], 'the gradient of the input', 'gradient-stays')
        if went.machine.held:
            there = sorted(handle.number for handle in went.machine.held)
            raise failure(f'At the end the layers {there} are still in memory.', misconception='never-frees')


def _verify_each_once(went: Went, failure: Callable[..., Failure], kind: str, order: list[int],
                      reads: list[int]) -> None:
    ran, read = went.numbers(kind), went.numbers('read')
    if set(ran) < set(order):
        raise failure(f'Layers that never compute: {sorted(set(order) - set(ran))}.', misconception='left-out')
    if ran != order:
        raise failure(f'The layers are computed in the order {ran}; it should be {order}.', misconception='layer-order')
    if len(read) > len(set(read)) or set(read) - set(reads):
        raise failure(f'It reads the layers {read}.', misconception='reads-again')


def _verify_value(went: Went, failure: Callable[..., Failure], wanted: torch.Tensor, what: str, stays: str) -> None:
    if not isinstance(went.result, torch.Tensor):
        raise failure(f'{what.capitalize()} should be a tensor, not {type(went.result).__name__}.',
                      misconception='wrong-type')
    if not close(went.result, wanted):
        given = went.machine.given[-went.scene.count:]
        if went.scene.count > 1 and all(torch.equal(each, given[0]) for each in given):
            raise failure(misconception=stays)
        raise failure(f'{what.capitalize()} has other numbers than that of the plain model.')


def _raise_misused(went: Went, failure: Callable[..., Failure], with_room: Callable[[], list[Went]]) -> None:
    """What came out of the learner's code. Where there was no room: why, from what becomes of it with room for all."""
    if is_misused(went, 'no-room', 'no-such-part'):
        name = went.error.misconception
        raise failure(went.error.detail, misconception=_why_no_room(with_room()) if name == 'no-room' else name)
    if went.error is not None:
        raise InCase(went.error, _call(went))


def _why_no_room(went: list[Went]) -> str:
    if any(each.numbers('backward') != sorted(each.numbers('backward'), reverse=True) for each in went):
        return 'layer-order'
    if all(each.before and each.numbers('read')[:1] == each.scene.last[-1:] for each in went):
        return 'reads-again'
    long = [each for each in went if each.scene.count > max(each.scene.ahead + 1, 2)]
    if all(each.kinds.startswith('r' * each.scene.count) for each in long):
        return 'all-at-once'
    if all(each.machine.peak <= each.scene.ahead + 2 for each in long):
        return 'one-too-many'
    return 'never-frees' if all(each.machine.peak == each.scene.count for each in long) else 'no-room'


def _call(went: Went) -> str:
    scene = went.scene
    return '\n'.join([f'{scene.count} layer{"s" * (scene.count > 1)}, ahead={scene.ahead}',
                      f'seconds to read     {listed(scene.reads)}', f'seconds to compute  {listed(scene.computes)}'])


def _failure(work: Work, name: str, went: Went) -> Callable[..., Failure]:
    """Makes the failure of this function in this scene."""
    def made(message: str = '', *, misconception: str = '', more: str = '') -> Failure:
        lines = work.lines(went.error.__traceback__) if went.error is not None else work.definition(name)
        picture = went.machine.picture(went.since) if went.scene.count <= len(DIGITS) else ''
        return Failure(message, misconception=misconception, case=_call(went) + more, lines=lines, picture=picture)
    return made


def check_time(work: Work, name: str, scenes: list[Scene]) -> None:
    """Raise Failure if it takes longer than it has to in any of the scenes."""
    function, run, shortest = ((work.forward, run_forward, least_forward) if name == 'forward' else
                               (work.backward, run_backward, least_backward))
    went = [run(function, scene, scene.ahead + 1) for scene in scenes]
    slow = [each for each in went if each.seconds > shortest(each.scene) + 1e-9]
    if not slow:
        return
    first = slow[0]
    raise _failure(work, name, first)(
        f'It takes {first.seconds:g} s, and {shortest(first.scene):g} s are possible.',
        misconception=_why_slow(went, name),
        more=f'\nyours     {first.seconds:g} s\nexpected  {shortest(first.scene):g} s') from None


def _why_slow(went: list[Went], name: str) -> str:
    """What takes as long as that in every scene."""
    def explains(predicted: Callable[[Scene], float]) -> bool:
        return all(abs(each.seconds - predicted(each.scene)) < 1e-9 for each in went)

    shortest = least_forward if name == 'forward' else least_backward
    if all(not _overlaps(each, name) for each in went):
        return 'no-overlap'
    if explains(lambda scene: shortest(scene, max(scene.ahead - 1, 0))):
        return 'one-too-few'
    if explains(lambda scene: shortest(scene, min(scene.ahead, 1))):
        return 'one-ahead'
    if name == 'forward' and explains(_slow_start):
        return 'slow-start'
    if any(_in_groups(each, name) for each in went):
        return 'in-groups'
    return ''


def _slow_start(scene: Scene) -> float:
    """Where nothing is read ahead before the first layer has been computed."""
    rest = Scene((0.0, *scene.reads[1:]), (0.0, *scene.computes[1:]), scene.ahead)
    return scene.reads[0] + scene.computes[0] + least_forward(rest)


def _overlaps(went: Went, kind: str) -> bool:
    events = went.machine.events[went.before:]
    computed = [event for event in events if event.kind == kind]
    return any(read.start < each.end and each.start < read.end
               for read in events if read.kind == 'read' for each in computed)


def _in_groups(went: Went, kind: str) -> bool:
    """Are two or more computed, one after the other, and only then as many read?"""
    letter = kind[0].upper()
    order = went.kinds.replace('w', '').replace('x', '')
    later = order.lstrip('r')
    return went.scene.ahead > 0 and 2 * letter in order and 'rr' in later and f'{letter}r{letter}' not in later
