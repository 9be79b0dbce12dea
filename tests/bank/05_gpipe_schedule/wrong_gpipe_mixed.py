# misconception: mixed
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    rows = []
    for s in range(stages):
        row = [f'F{i}' for i in range(min(stages - s, micro_batches))]
        done = 0
        for i in range(stages - s, micro_batches):
            row += [f'B{done}', f'F{i}']
            done += 1
        rows.append(row + [f'B{i}' for i in range(done, micro_batches)])
    return rows


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
