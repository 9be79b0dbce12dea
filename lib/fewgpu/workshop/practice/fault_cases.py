"""Random runs of pipelines with one fault each, or none, clear enough to be told apart."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from fewgpu.workshop.practice.faults import LIKE, Layer, Machine, Record, Setting, balances, run, stages
from fewgpu.workshop.practice.rows import as_far_as_it_comes

FAULTS = 'straggler', 'slow link', 'imbalance', 'out of memory', 'deadlock', 'loss scale', 'healthy'
CUTS = 'straggler', 'slow link', 'imbalance'   # what another balance mends
FAILURES = 'out of memory', 'deadlock'
AMPLE = 10 ** 9


@dataclass(frozen=True)
class Case:
    """A run, and what is wrong with it."""

    setting: Setting
    machine: Machine
    fault: str
    where: int | None
    record: Record


def work(balance: tuple[int, ...], machine: Machine) -> list[float]:
    """Seconds of each stage's layers, by the profile."""
    return [sum(layer.seconds for layer in stage) for stage in stages(balance, machine.layers)]


def unevenness(balance: tuple[int, ...], machine: Machine) -> float:
    """The most work of a stage over the average."""
    each = work(balance, machine)
    return max(each) * len(each) / sum(each)


def others(setting: Setting, machine: Machine) -> Iterator[float]:
    """Seconds of a step with each balance."""
    return (run(replace(setting, balance=balance), machine).seconds
            for balance in balances(len(machine.layers), len(machine.slowness)))


def case_of(fault: str, random: Random, devices: int = 0, variant: int = 2) -> Case:
    """One with that fault; tried until it is clear. Variants 0 to 3 together have all looks of it."""
    while True:
        n = devices or random.choice((2, 3, 3, 4))   # of two devices' one link nobody can say that it is slow
        made = _case(fault, max(n, 3) if fault == 'slow link' else n, random, variant)
        if made and _is_variant(made, variant):
            return made


def cases(random: Random, times: int, faults: tuple[str, ...] = FAULTS) -> list[Case]:
    """So many of each fault, on two devices first."""
    return [case_of(fault, random, {0: 2, 1: 3}.get(time % 4, 0), time % 4)
            for time in range(times) for fault in faults]


def _is_variant(case: Case, variant: int) -> bool:
    if variant == 1 and case.fault == 'out of memory':
        return case.record.peak[case.where] < max(case.record.peak)
    if variant == 1 and case.fault == 'healthy':   # layers differ
        return max(case.setting.balance) * len(case.setting.balance) > 1.4 * len(case.machine.layers)
    if case.fault == 'deadlock':   # one that is not the first device's, and one that is not the last one's
        done = [len(spans) for spans in case.record.spans]   # 4: nor is it where least has been done
        return {1: case.where == 1, 2: case.where == 0 and len(done) > 2,
                4: case.where == 0 and done[1] < done[0]}.get(variant, True)
    return True


def _case(fault: str, n: int, random: Random, variant: int) -> Case | None:
    machine = _machine(n, random, {1: 2.5, 3: 0.7}.get(variant) or random.choice((0.7, 1.0, 2.5)))
    even = [balance for balance in balances(len(machine.layers), n) if unevenness(balance, machine) <= 1.25]
    if not even:
        return None
    # A long step with a short bubble, or a few micro-batches with a long one.
    setting = Setting(random.choice(even), random.choice((4, 4, 6, 8)), random.choice(list(LIKE)), 0.0)
    setting, where = replace(setting, loss_scale=1 / setting.chunks), None
    factor = random.choice((1.8, 2.2, 3.0))
    if fault == 'straggler':
        where = random.randrange(n)
        machine = replace(machine, slowness=_times(machine.slowness, where, factor))
    elif fault == 'slow link':
        where = random.randrange(n - 1)
        machine = replace(machine, seconds_a_byte=_times(machine.seconds_a_byte, where, 10 * factor))
    elif fault == 'imbalance':
        uneven = [balance for balance in balances(len(machine.layers), n) if 1.5 <= unevenness(balance, machine)]
        if not uneven:
            return None
        setting = replace(setting, balance=random.choice(uneven))
        each = work(setting.balance, machine)
        where = each.index(max(each))
        if sorted(each)[-2] > 0.85 * each[where]:
            return None
    elif fault == 'loss scale':
        setting = replace(setting, loss_scale={
            0: 2 / setting.chunks, 2: 1.0}.get(variant % 4, 1 / setting.chunks ** 2))
    elif fault == 'deadlock':
        found = _standing_still(n, setting.chunks, random)
        if not found:
            return None
        setting, where = replace(setting, schedule=found[0]), found[1]
    elif fault == 'out of memory':
        setting = replace(setting, schedule='gpipe', chunks=8)
        setting = replace(setting, loss_scale=1 / setting.chunks)
    free = run(setting, machine)
    if fault == 'out of memory':
        where = random.randrange(n)
        lean = run(replace(setting, schedule='1f1b'), machine).peak
        most = 0.5 * (free.peak[where] + lean[where])
        if lean[where] > 0.8 * free.peak[where]:
            return None
        machine = replace(machine, memory=tuple(most if device == where else 1.2 * peak
                                                for device, peak in enumerate(free.peak)))
    elif fault not in (*CUTS, *FAILURES) and random.random() < 0.5:   # just enough
        machine = replace(machine, memory=tuple(random.choice((1.01, 1.5, 4.0)) * peak for peak in free.peak))
    record = run(setting, machine)
    if not all(record.spans) or not all(record.messages):
        return None
    if fault in CUTS and all(seconds > 0.9 * record.seconds for seconds in others(setting, machine)):
        return None   # nothing to mend
    return Case(setting, machine, fault, where, record)


def _machine(n: int, random: Random, age: float) -> Machine:
    layers = tuple(Layer(random.choice((1.0, 2.0, 3.0, 4.0)), random.choice((80, 160, 320, 640)),
                         random.choice((400, 800, 1200))) for _ in range(random.randrange(2 * n + 1, 2 * n + 5)))
    pace = random.choice((0.0005, 0.001))
    return Machine(layers, tuple(age * random.uniform(0.97, 1.03) for _ in range(n)),
                   tuple(pace * random.uniform(0.97, 1.03) for _ in range(n - 1)), (AMPLE,) * n)


def _times(numbers: tuple[float, ...], where: int, factor: float) -> tuple[float, ...]:
    return tuple(factor * each if k == where else each for k, each in enumerate(numbers))


def _standing_still(n: int, chunks: int, random: Random) -> tuple[tuple[tuple[str, ...], ...], int] | None:
    """1F1B's rows with one operation moved, so that two neighbours wait for each other, and the first of the two."""
    rows = [[f'{op.kind}{op.micro_batch}' for op in row] for row in LIKE['1f1b'](n, chunks).rows]
    row = random.choice(rows)
    old = random.randrange(2, len(row))
    cell = row.pop(old)
    new = random.randrange(1, old)
    row.insert(new, cell)
    if row.index(f'F{cell[1:]}') > row.index(f'B{cell[1:]}'):
        return None
    done = as_far_as_it_comes(rows)[0].rows
    if any(len(spans) == len(own) for spans, own in zip(done, rows)):
        return None
    waits = ''.join(own[len(spans)][0] for spans, own in zip(done, rows))
    return (tuple(map(tuple, rows)), waits.index('BF')) if waits.count('BF') == 1 else None
