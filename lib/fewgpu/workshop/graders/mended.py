"""Another setting for a run with a fault: its law, and what goes wrong with it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from fewgpu.workshop.grading.law import Like, Suspect
from fewgpu.workshop.practice.fault_cases import AMPLE, CUTS, Case, others, work
from fewgpu.workshop.practice.faults import LIKE, Machine, Setting, balances, plain_setting, run

MARGIN = 1.05


def read(case: Case, got: Any) -> Setting | None:
    """The setting that was given, if it is one."""
    try:
        return plain_setting(got, case.machine)
    except (ValueError, TypeError, AttributeError):
        return None


def wrong(case: Case, got: Any) -> str:
    """What is wrong with a setting, in a sentence; '' if nothing is."""
    try:
        setting = plain_setting(got, case.machine)
    except (ValueError, TypeError, AttributeError) as error:
        return f'There is no such setting: {error}.'
    record = run(setting, case.machine)
    if record.error:
        return f'The step still fails: {record.error.removesuffix(".")}.'
    if abs(setting.loss_scale * setting.chunks - 1) > 1e-6:
        return (f'With {setting.chunks} micro-batches and loss_scale {setting.loss_scale:g} the gradients are '
                f'{setting.loss_scale * setting.chunks:g} times as large as they should be.')
    enough = allowed(case, setting)
    if record.seconds > MARGIN * enough:
        return f'The step takes {record.seconds:.2f} s, and {enough:.2f} s are enough.'
    return ''


def allowed(case: Case, setting: Setting) -> float:
    """Seconds that are enough."""
    ample = replace(case.machine, memory=(AMPLE,) * len(case.machine.memory))
    if case.fault in CUTS:   # also with other chunks the balance has to be the best
        return min(_fastest(case.setting.chunks, case.setting.schedule, case.machine),
                   _fastest(setting.chunks, setting.schedule, case.machine))
    if case.fault in ('out of memory', 'deadlock'):
        return max(run(replace(case.setting, schedule=schedule), ample).seconds for schedule in LIKE)
    return case.record.seconds


@cache
def _fastest(chunks: int, schedule: Any, machine: Machine) -> float:
    return min(others(Setting((), chunks, schedule, 1.0), machine))


def mend_guesses() -> list[Suspect]:
    def fits(name: str, fits: Callable[[Case, Setting], Any]) -> Suspect:
        return Suspect(name, lambda case: Like(
            lambda got: (setting := read(case, got)) is not None and bool(fits(case, setting))))

    def best_for(case: Case, setting: Setting, **other: tuple[float, ...]) -> bool:
        """Would it be the best balance if the machine were another one?"""
        machine = replace(case.machine, **other)
        return run(setting, machine).seconds <= MARGIN * _fastest(setting.chunks, setting.schedule, machine)

    def is_best_by_work(case: Case, setting: Setting) -> bool:
        slow = case.machine.slowness
        def pace(balance: tuple[int, ...]) -> float:
            return max(one * other for one, other in zip(work(balance, case.machine), slow))
        return pace(setting.balance) <= 1.001 * min(map(pace, balances(len(case.machine.layers), len(slow))))

    def more_there(case: Case, setting: Setting) -> bool:
        return work(setting.balance, case.machine)[case.where] > work(case.setting.balance, case.machine)[case.where]

    return [
        fits('scale-left-behind', lambda case, setting: setting.chunks != case.setting.chunks
             and setting.loss_scale == case.setting.loss_scale and case.fault != 'loss scale'),
        fits('scale-upside-down', lambda case, setting: case.fault == 'loss scale'
             and setting.loss_scale == setting.chunks),
        fits('scale-kept', lambda case, setting: case.fault == 'loss scale'
             and abs(setting.loss_scale * setting.chunks - 1) > 1e-6),
        fits('gpipe-keeps-all', lambda case, setting: case.fault == 'out of memory'
             and setting.schedule == 'gpipe' and setting.chunks != case.setting.chunks),
        fits('fewer-chunks', lambda case, setting: case.fault not in CUTS and setting.chunks < case.setting.chunks),
        fits('wrong-way', lambda case, setting: case.fault in ('straggler', 'imbalance') and more_there(case, setting)),
        fits('equal-work', lambda case, setting: case.fault == 'straggler' and best_for(
            case, setting, slowness=(1.0,) * len(case.machine.slowness))),
        fits('links-forgotten', lambda case, setting: case.fault == 'slow link'
             and (is_best_by_work(case, setting) or best_for(
                 case, setting, seconds_a_byte=(0.0,) * len(case.machine.seconds_a_byte)))),
        fits('same-numbers', lambda case, setting: case.fault in CUTS
             and max(setting.balance) - min(setting.balance) <= 1),
        fits('unchanged', lambda case, setting: setting == case.setting),
        fits('one-layer-left', lambda case, setting: case.fault == 'straggler' and setting.balance[case.where] == 1),
        fits('one-layer-moved', lambda case, setting: case.fault in CUTS
             and sum(abs(a - b) for a, b in zip(setting.balance, case.setting.balance)) == 2),
        fits('other-fault', lambda case, setting: case.fault in CUTS and setting.balance == case.setting.balance),
        fits('same-memory', lambda case, setting: case.fault == 'out of memory'
             and 'memory' in run(setting, case.machine).error),
        fits('still-waits', lambda case, setting: case.fault == 'deadlock'
             and 'Timeout' in run(setting, case.machine).error),
    ]
