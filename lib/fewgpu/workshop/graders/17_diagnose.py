"""Grader of exercise 17. Laws: slowness by the profile; the fault and its place; a setting that mends it."""

from functools import partial
from random import Random
from typing import Any

from fewgpu.workshop.graders.fault_guesses import (busy, by_profile, fault_guesses, link_guesses, ratios,
                                                   slowness_guesses)
from fewgpu.workshop.graders.mended import allowed, mend_guesses, read, wrong
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Law, close, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.fault_cases import CUTS, FAULTS, Case, case_of, cases
from fewgpu.workshop.practice.faults import Setting, picture, run
from fewgpu.workshop.practice.plain import listed

FORBIDDEN = 'fewgpu.simulate', 'fewgpu.schedule', 'fewgpu.planner'

MISCONCEPTIONS = {
    'busy-seconds': 'that is how long each device has computed; one with more work computes longer and is not slow',
    'layers-alike': 'layers or operations are counted, but they differ: compare with the seconds of the profile',
    'waits-counted': 'the time between the spans (or messages) is counted too: who waits for a slow neighbour '
                     'then looks slow itself',
    'backward-as-forward': 'a backward is expected to take as long as a forward, and takes twice as long',
    'backward-left-out': 'the backwards are in the seconds and not in what the profile says for them',
    'all-has-run': 'a whole step is expected, but some steps failed half-way: count the spans that are there',
    'whole-mini-batch': 'the seconds of the profile are those of a mini-batch: a micro-batch takes 1 / chunks of them, '
                        'and there are several operations',
    'same-first-layer': 'every stage is taken to begin at the first layer',
    'to-the-fastest': 'that is a ratio to the fastest one of the run; asked for is the number itself',
    'upside-down': 'it is turned upside down: larger has to be slower',
    'message-seconds': 'that is the time of messages; a link that carries more takes longer and is not slow: divide by '
                       'the bytes',
    'one-messages-bytes': 'the seconds are those of all messages and the bytes those of one',
    'fault-only': 'the answer is a pair: the fault, and where it is',
    'swapped': 'the fault comes first, then where it is',
    'from-one': 'devices and links are counted from 1, and the first is number 0: a healthy part gets the blame',
    'later-end': 'link k, and the pair k, begins at device k; here the device behind it gives the number',
    'norms-of-a-failure': 'a step that failed has no norms: look at `error` first',
    'largest-peak': 'the device with the largest peak is blamed; one with more memory may well use more: compare each '
                    'peak with its own limit',
    'who-waits': 'a device that waits is blamed, but most only wait for others that wait: look for two neighbours of '
                 'which each waits for the other',
    'only-large': 'gradients that are much too small are not noticed: then the training hardly gets on',
    'losses-fall': 'losses may fall with a wrong scale, too: compare the norms with the plain ones',
    'average-hides': 'a slow device is compared with an average that it raises itself: compare with the fastest',
    'all-slower': 'slowness is compared with 1, but all devices may be slower or faster than in the profile: compare '
                  'them with each other',
    'idle-blamed': 'the device that waits most is blamed, and not the one that it waits for',
    'busy-is-slow': 'the device that computes longest is taken for a slow one; it may have more work: compare with the '
                    'profile',
    'slow-is-work': 'who computes longest is taken for one with too much work; the device may be slow: by the profile '
                    'the stages are about equal',
    'long-messages': 'the link that is busy longest is taken for a slow one; its messages are larger: look at the '
                     'seconds of a byte',
    'more-layers': 'the stage with the most layers is taken for the one with the most work; layers differ',
    'small-differences': 'the slowest device or link is taken for a fault, however little it differs: one is always '
                         'the slowest; a fault makes it 1.5 times as slow as others',
    'bubble': 'nothing is wrong with that run: every pipeline has a bubble, and nothing is 1.5 times as slow as others',
    'unchanged': 'the setting is as it was, and so is the fault',
    'scale-left-behind': 'there are other chunks and the same loss_scale: the gradients have another size now',
    'scale-upside-down': 'the losses are multiplied by `loss_scale`, and there are `chunks` of them: it makes their '
                         'sum a mean, and not larger still',
    'scale-kept': 'the scale is still not the one that makes a mean of the losses',
    'gpipe-keeps-all': 'with GPipe a device keeps all micro-batches, however many and small they are: other chunks '
                       'save nothing',
    'fewer-chunks': 'fewer micro-batches are larger ones: each needs more memory, and the devices wait longer for the '
                    'first of them',
    'wrong-way': 'the device that all wait for got more work',
    'equal-work': 'all devices get equal work, but one is slower: its share has to be smaller',
    'same-numbers': 'all devices have the same number of layers, whatever these cost, and how slow devices and links '
                    'are',
    'links-forgotten': 'that balance would be best if all links were fast, but the slow link is what all wait for: cut '
                       'where the output is small',
    'one-layer-left': 'the slow device has a single layer left, and the others now take longer than it did',
    'one-layer-moved': 'one layer has moved, and that is not the best balance yet: try all of them',
    'other-fault': 'the balance is the same, and it is what has to change: every device and link has its own pace',
    'same-memory': 'a device still keeps more than it has memory for',
    'still-waits': 'two devices still wait for each other',
}

HINTS = {
    'slow_devices': Hints(
        idea='A device that takes twice as long may have twice the work. What does the profile expect of it, for just '
             'these spans?',
        place='`slowness`: two sums for each device. A span is `end - start`; its kind says what the profile expects.',
        outline='a stage begins at the layer where the one before it ends\n'
                'forward = seconds of its layers by the profile, over chunks\n'
                'expected = a forward for each F, two for each B\n'
                'slowness = sum of the spans over expected'),
    'slow_links': Hints(
        idea='Which is the slower road: the one that is used longer, or the one where each car takes longer?',
        place='`seconds_a_byte`: two sums over `record.messages[k]`.',
        outline='for each link: the sum of end - start, over the sum of bytes'),
    'the_fault': Hints(
        idea='Which numbers are certain, whatever else there is? `error` comes first, then the norms; both have '
             'nothing to do with time. Of what is left: compare devices with each other, links with each other, stages '
             'by the profile.',
        place='`diagnose`: one `if` for each fault. For a deadlock: what comes next on each device, an F or a B?',
        outline='out of memory: the device whose peak is larger than its own memory\n'
                'any other error: the k where device k waits for a B, and device k + 1 for an F\n'
                'norms over plain norms far from 1: the loss scale\n'
                'slowness over the least of them, seconds a byte over the least of them, work of a stage over the '
                'average: the largest, if it is above 1.4\n'
                'else healthy'),
    'mended': Hints(
        idea='Ask of each fault what causes it. How many micro-batches does GPipe keep, how many 1F1B? Which schedule '
             'is known not to stand still? What makes a mean of a sum? And where do the layers belong if a device or '
             'a link is slow?',
        place='`mend`: `replace(record.setting, ...)`. For a balance: predict each one with the slowness and seconds a '
              'byte that you have measured.',
        outline='out of memory, deadlock: the schedule 1f1b\n'
                'loss scale: 1 / chunks\n'
                'straggler, slow link, imbalance: of all balances the one with the least predicted seconds\n'
                'healthy: as it was'),
}


def short(numbers: Any, most: int = 58) -> str:
    return shown(f'[{", ".join(f"{each:.4g}" for each in numbers)}]', most)


def described(case: Case) -> list[str]:
    """A record, in a few lines."""
    record = case.record
    lines = [f'balance   {in_a_line(case.setting)}',
             f'profile   {shown([layer.seconds for layer in record.layers], 64)}']
    if record.error:
        lines += [shown(record.error, 74)]
    if 'memory' in record.error:
        lines += [f'peak      {short(record.peak)}', f'memory    {short(record.memory)}']
    if case.fault == 'deadlock':
        lines += ['next      ' + ', '.join(f'device {d}: {row[len(spans)]}' for d, (row, spans) in enumerate(
            zip(record.rows, record.spans)))]
    if record.norms:
        lines += [f'norms     {short(record.norms)}', f'plain     {short(record.plain_norms)}']
    return lines


def in_a_line(setting: Setting) -> str:
    schedule = setting.schedule if isinstance(setting.schedule, str) else 'rows written by hand'
    return f'{setting.balance}, chunks {setting.chunks}, {schedule}, loss_scale {setting.loss_scale:.4g}'


def measured(case: Case) -> list[str]:
    """The features, where the steps before this one have passed."""
    return [f'slowness  {short(slowness_of(case))}', f'a byte    {short(paces_of(case))}']


def slowness_of(case: Case) -> list[float]:
    return ratios(busy(case.record), by_profile(case.record))


def paces_of(case: Case) -> list[float]:
    return [sum(each.end - each.start for each in link) / sum(each.bytes for each in link)
            for link in case.record.messages]


def told(name: str, case: Case, got: Any, wanted: str) -> str:
    return '\n'.join([f'{name}(record) of', *described(case), *(measured(case) if name in ('diagnose', 'mend') else []),
                      f'yours     {short(got) if is_numbers(got) else shown(got, 80)}', f'expected  {wanted}'])


def is_numbers(got: Any) -> bool:
    return isinstance(got, list) and all(isinstance(each, (int, float)) for each in got)


def drawn(case: Case, got: Any, wanted: Any) -> str:
    return picture(case.record)


def few(random: Random, times: int = 2) -> list[Case]:
    """Smallest first: fewest devices and operations."""
    return sorted(cases(random, times), key=lambda case: (len(case.machine.slowness), case.setting.chunks))


@check("slowness is a device's seconds over the profile's", points=2)
def slow_devices(work: Work, random: Random) -> None:
    judge(few(random), lambda case: listed(work.slowness(case.record)), slowness_of,
          same=partial(close, tolerance=1e-6), suspects=slowness_guesses(), picture=drawn,
          lines=work.definition('slowness'), tell=lambda case, got, wanted: told('slowness', case, got, short(wanted)))


@check('seconds a byte are those of all messages of a link', points=1)
def slow_links(work: Work, random: Random) -> None:
    judge(few(random), lambda case: listed(work.seconds_a_byte(case.record)), paces_of,
          same=lambda one, other: close([1e3 * each for each in one] if is_numbers(one) else one,
                                        [1e3 * each for each in other], tolerance=1e-6),
          suspects=link_guesses(), picture=drawn, lines=work.definition('seconds_a_byte'),
          tell=lambda case, got, wanted: told('seconds_a_byte', case, got, short(wanted)))


@check('the fault is found, and where it is', points=4, seconds=30.0)
def the_fault(work: Work, random: Random) -> dict[str, str]:
    tried = [*few(random, 4), case_of('deadlock', random, 3, 4)]
    judge(tried, lambda case: listed(work.diagnose(case.record)), lambda case: [case.fault, case.where],
          suspects=fault_guesses(), picture=drawn, lines=work.definition('diagnose'),
          tell=lambda case, got, wanted: told('diagnose', case, got, str(tuple(wanted))))
    return {'found': f'{len(tried)} runs, {len(FAULTS) - 1} kinds of fault and runs that have none'}


@check('another setting mends it', points=3, seconds=30.0)
def mended(work: Work, random: Random) -> dict[str, str]:
    def tell(case: Case, got: Any, law: Law) -> str:
        setting = read(case, got)
        best = f'at most {allowed(case, setting or case.setting):.2f} s, without an error'
        best += ', as the best balance has it' * (case.fault in CUTS)
        return told('mend', case, got if setting is None else f'balance {in_a_line(setting)}',
                    f'{case.fault}: {best}')

    tried = few(random, 3)
    gained = []

    def answer(case: Case) -> Any:
        got = work.mend(case.record)
        if case.fault in CUTS and (setting := read(case, got)):
            gained.append(case.record.seconds / run(setting, case.machine).seconds)
        return got

    judge(tried, answer, lambda case: Law(partial(wrong, case)), suspects=mend_guesses(), picture=drawn,
          lines=work.definition('mend'), why=lambda case, got, law: law.broken(got),
          tell=tell)
    return {'faster': f'slow runs by a factor of {sum(gained) / len(gained):.1f} on average'}
