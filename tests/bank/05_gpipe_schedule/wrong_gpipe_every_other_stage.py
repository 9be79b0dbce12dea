# misconception: orders-differ
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    forwards = [f'F{i}' for i in range(micro_batches)]
    rows = []
    for s in range(stages):
        if s % 2:
            rows.append([f'F{i}' for i in range(micro_batches)] + [f'B{i}' for i in range(micro_batches)])
        else:
            rows.append(forwards + [f'B{i}' for i in reversed(range(micro_batches))])
    return rows


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
