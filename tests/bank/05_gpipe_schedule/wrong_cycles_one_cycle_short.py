# misconception: one-cycle-short
def clock_cycles(stages, micro_batches):
    out = []
    for t in range(stages + micro_batches - 2):
        out.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return out


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
