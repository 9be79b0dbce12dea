# misconception: stage-for-micro-batch
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    rows = []
    for stage in range(stages):
        numbers = range(stage, stage + micro_batches)
        rows.append([f'F{i}' for i in numbers] + [f'B{i}' for i in reversed(numbers)])
    return rows


def bubble(stages, micro_batches):
    return (stages - 1) / (stages - 1 + micro_batches)
