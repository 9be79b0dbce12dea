"""Exercise 17: what is wrong with this run? (about 40 minutes).

A training that is slow or fails rarely says why. Idle devices are no proof: every pipeline has a bubble, and who
waits is not who is slow. The record of one step says more, if each number is compared with what it should be. Here
you find the fault in such records, and mend it by another setting.

    ./workshop.py check 17       # is it right?
    ./workshop.py run exercises/17_diagnose.py

A record has (device d runs stage d; link k is between devices k and k + 1; all bytes and seconds are numbers):

    record.setting       .balance      layers of each stage, such as (3, 2)
                         .chunks       number of micro-batches
                         .schedule     'gpipe', '1f1b', or rows written by hand
                         .loss_scale   the mean loss of each micro-batch is multiplied by it before its backward
    record.layers        the profile, of each layer: .seconds of the forward of the whole mini-batch (a micro-batch
                         takes 1 / chunks of it, and a backward twice as long as a forward), .output and .stash
                         (bytes of what it returns, and of what it keeps for its backward)
    record.rows[d]       what device d should run, in order: ('F0', 'F1', 'B1', 'B0')
    record.spans[d]      what it has run: each has .kind ('F' or 'B'), .micro_batch, .start, .end. Waiting is between
                         spans, not in them. A device runs its row in order, so these are the first of its row.
    record.messages[k]   each has .start, .end (from its first byte to its last) and .bytes
    record.peak[d]       bytes that the stashes took at their most, those that did not fit included
    record.memory[d]     bytes that there are for them
    record.error         '' if the step came to its end
    record.seconds       of the step
    record.norms         of the first training steps: norms of the gradients; empty if the step failed
    record.plain_norms   the same, of one device that has run the whole mini-batch with the same weights
"""

from dataclasses import replace
from random import Random

from fewgpu.workshop.practice.fault_cases import FAULTS, case_of
from fewgpu.workshop.practice.faults import Record, Setting, balances, picture, predict


def slowness(record: Record) -> list[float]:
    """How many times longer than by the profile each device takes, for what it has run.

    Of each device: the seconds of all its spans together, over the seconds that the profile says for the same
    operations. The step may have failed half-way, so count the operations that are there; there is at least one.

        Device 1 has layers of 2 and 4 seconds, there are 4 micro-batches, and it has run F0, F1 and B1. By the
        profile a forward takes (2 + 4) / 4 = 1.5 and a backward 3, together 6 seconds. Its spans are 9 long:
        slowness 1.5.
    """
    # STEP 1: find the layers of each stage, what the profile says for its spans, and divide
    factors, first = [], 0
    for count, spans in zip(record.setting.balance, record.spans):
        forward = sum(layer.seconds for layer in record.layers[first:first + count]) / record.setting.chunks
        first += count
        expected = sum(forward if span.kind == 'F' else 2 * forward for span in spans)
        factors.append(sum(span.end - span.start for span in spans) / expected)
    return factors
    # END


def seconds_a_byte(record: Record) -> list[float]:
    """What a byte takes on each link: the seconds of all its messages together, over their bytes.

        Messages from 0 to 2 and from 5 to 8, of 10 bytes each  ->  (2 + 3) / 20 = 0.25
    """
    # STEP 2: the same for links; there is at least one message on each
    return [sum(message.end - message.start for message in link) / sum(message.bytes for message in link)
            for link in record.messages]
    # END


def diagnose(record: Record) -> tuple[str, int | None]:
    """The fault, and where it is: ('straggler', 2). There is one, or none.

    ('out of memory', d)   `error` contains 'out of memory': device d needs more than *it* has
    ('deadlock', k)        `error` is another one: the step stands still. Devices k and k + 1 wait for each other, and
                           all others for them. Of each device you know what comes next in its row. An F waits for the
                           device before it, a B for the one after it.
    ('loss scale', None)   the norms of the gradients are not the plain ones, much too large or much too small: the
                           losses of the micro-batches are added up, say, and not averaged
    ('straggler', d)       device d is slow: at least 1.5 times the slowness of the fastest device
    ('slow link', k)       link k is slow: a byte takes at least 1.5 times as long as on the fastest link
    ('imbalance', d)       no device is slow, but stage d has most of the work: by the profile it has at least 1.5
                           times the average of all stages
    ('healthy', None)      nothing of all that. A bubble alone is no fault.

    Without that fault such numbers are below 1.3, and norms equal up to rounding. All devices together may be slower
    or faster than in the profile: that is no fault.
    """
    # STEP 3: first the errors, then the norms, then what is slow
    if 'out of memory' in record.error:
        return 'out of memory', next(d for d, peak in enumerate(record.peak) if peak > record.memory[d])
    if record.error:
        waits = ''.join(row[len(spans)][0] for row, spans in zip(record.rows, record.spans))
        return 'deadlock', waits.index('BF')
    if not 0.9 < record.norms[0] / record.plain_norms[0] < 1.1:
        return 'loss scale', None
    ends = [sum(record.setting.balance[:stage + 1]) for stage in range(len(record.setting.balance))]
    work = [sum(layer.seconds for layer in record.layers[end - count:end])
            for end, count in zip(ends, record.setting.balance)]
    average = sum(work) / len(work)
    for fault, numbers, usual in (('straggler', slowness(record), min(slowness(record))),
                                  ('slow link', seconds_a_byte(record), min(seconds_a_byte(record))),
                                  ('imbalance', work, average)):
        if max(numbers) > 1.4 * usual:   # between 1.3, where no fault is, and 1.5
            return fault, numbers.index(max(numbers))
    return 'healthy', None
    # END


def mend(record: Record) -> Setting:
    """Another setting for the same machine, model and mini-batch, which does not have that fault.

    - The step comes to its end, within the memory that there is, and the norms of the gradients are right: the mean
      loss of each micro-batch is multiplied by `loss_scale`, and all together have to give the mini-batch's mean.
    - straggler, slow link, imbalance: the step takes at most 5 % longer than with the best balance for these devices
      and links, both the best one for your chunks and schedule and the best one for those of the record.
    - out of memory, deadlock: the step takes no longer than the slower of 'gpipe' and '1f1b' would with the balance and
      chunks of the record and enough memory, up to 5 %.
    - Otherwise the step takes no longer than it did, up to 5 %. What is healthy may stay as it is.

    You may change all of the setting: replace(record.setting, chunks=16) makes another one. Chunks can be 1 to 16.
    Two helpers are there:

        balances(5, 2)                          all balances of 5 layers on 2 devices: (1, 4), (2, 3), (3, 2), (4, 1)
        predict(record, setting, slow, paces)   the record that another setting would give, with its .seconds, .peak
                                                and .error, where device d has slowness slow[d], and a byte takes
                                                paces[k] seconds on link k
    """
    # STEP 4: what does each fault ask for?
    fault, _ = diagnose(record)
    setting = record.setting
    if fault in ('out of memory', 'deadlock'):   # it never stands still, and keeps no more micro-batches than stages
        return replace(setting, schedule='1f1b')
    if fault == 'loss scale':
        return replace(setting, loss_scale=1 / setting.chunks)
    if fault == 'healthy':
        return setting
    slow, paces = slowness(record), seconds_a_byte(record)
    settings = [replace(setting, balance=balance) for balance in balances(len(record.layers), len(slow))]

    def price(other: Setting) -> tuple[bool, float]:
        predicted = predict(record, other, slow, paces)
        return predicted.error != '', predicted.seconds   # a step that fails half-way is not a short one

    return min(settings, key=price)
    # END


if __name__ == '__main__':
    for number, fault in enumerate(FAULTS):
        record = case_of(fault, Random(number), 3).record
        print(f'The fault is: {fault}. Digits are forwards, letters backwards, = is a message.')
        print(picture(record))
        print(f'   {record.seconds:.1f} s  {record.error}')
        print('   slowness      ', slowness(record))
        print('   seconds a byte', seconds_a_byte(record))
        print('   diagnose      ', diagnose(record))
        setting = mend(record)
        print('   mend          ', setting)
        print()
