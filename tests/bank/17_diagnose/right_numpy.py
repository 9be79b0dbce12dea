from dataclasses import replace

import numpy as np

from fewgpu.workshop.practice.faults import balances, predict


def work_of(record):
    layers = np.array([layer.seconds for layer in record.layers])
    return np.array([part.sum() for part in np.split(layers, np.cumsum(record.setting.balance)[:-1])])


def slowness(record):
    weights = {'F': 1, 'B': 2}
    units = np.array([sum(weights[span.kind] for span in spans) for spans in record.spans])
    busy = np.array([sum(span.end - span.start for span in spans) for spans in record.spans])
    return busy / (units * work_of(record) / record.setting.chunks)


def seconds_a_byte(record):
    return np.array([np.mean([(m.end - m.start) / m.bytes for m in link]) for link in record.messages])


def diagnose(record):
    if record.error:
        over = np.array(record.peak) > np.array(record.memory)
        if over.any():
            return 'out of memory', np.argmax(over)
        position = [len(spans) for spans in record.spans]
        for k in range(len(position) - 1):
            here, there = record.rows[k][position[k]:], record.rows[k + 1][position[k + 1]:]
            if here and there and here[0].startswith('B') and there[0].startswith('F'):
                return 'deadlock', k
    if not np.allclose(record.norms, record.plain_norms, rtol=0.05):
        return ['loss scale', None]
    slow, paces, work = slowness(record), seconds_a_byte(record), work_of(record)
    if slow.max() / slow.min() >= 1.5:
        return ['straggler', int(slow.argmax())]
    if paces.max() / paces.min() >= 1.5:
        return ['slow link', paces.argmax()]
    if work.max() / work.mean() >= 1.5:
        return ['imbalance', work.argmax()]
    return ['healthy', None]


def mend(record):
    fault = diagnose(record)[0]
    chunks = record.setting.chunks
    if fault == 'out of memory':
        return replace(record.setting, schedule='1f1b', chunks=np.int64(16), loss_scale=1 / 16)
    if fault == 'deadlock':
        return replace(record.setting, schedule='gpipe')
    if fault == 'loss scale':
        return replace(record.setting, loss_scale=np.float64(1.0) / chunks)
    if fault == 'healthy':
        return record.setting
    slow, paces = slowness(record), seconds_a_byte(record)
    choices = list(balances(len(record.layers), len(slow)))
    times = [predict(record, replace(record.setting, balance=np.array(each)), slow, paces).seconds for each in choices]
    return replace(record.setting, balance=choices[int(np.argmin(times))])
