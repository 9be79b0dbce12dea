# misconception: backwards-first
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    rows = []
    for _ in range(stages):
        rows.append([f'{kind}{i}' for kind in 'BF' for i in range(micro_batches)])
    return rows


def bubble(stages, micro_batches):
    return (stages - 1) / (stages - 1 + micro_batches)
