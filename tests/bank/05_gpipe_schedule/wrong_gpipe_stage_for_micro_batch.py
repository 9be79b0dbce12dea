# misconception: stage-for-micro-batch
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    return [[f'F{stage}'] * micro_batches + [f'B{stage}'] * micro_batches for stage in range(stages)]


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
