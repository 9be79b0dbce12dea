# misconception: by-cycle
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    rows = []
    for cycle in clock_cycles(stages, micro_batches):
        rows.append([f'F{i}' for _, i in cycle])
    for cycle in reversed(clock_cycles(stages, micro_batches)):
        rows.append([f'B{i}' for _, i in cycle])
    return rows


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
