# misconception: forwards-reversed
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    down = range(micro_batches - 1, -1, -1)
    return [[f'F{i}' for i in down] + [f'B{i}' for i in range(micro_batches)] for _ in range(stages)]


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
