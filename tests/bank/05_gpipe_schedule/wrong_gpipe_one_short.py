# misconception: one-short
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    rows = []
    for _ in range(stages):
        row = []
        for i in range(micro_batches):
            row.append(f'F{i}')
        for i in range(micro_batches - 1, 0, -1):
            row.append(f'B{i}')
        rows.append(row)
    return rows


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
