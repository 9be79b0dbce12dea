# misconception: transfer-cycle
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(2 * stages + micro_batches - 2):
        cycles.append([(s, t - 2 * s) for s in range(stages) if 0 <= t - 2 * s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    return (stages - 1) / (stages - 1 + micro_batches)
