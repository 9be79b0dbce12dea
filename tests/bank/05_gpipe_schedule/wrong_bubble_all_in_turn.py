# misconception: all-in-turn
def clock_cycles(stages, micro_batches):
    cycles = []
    for t in range(stages + micro_batches - 1):
        cycles.append([(s, t - s) for s in range(stages) if 0 <= t - s < micro_batches])
    return cycles


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    return (stages - 1) / (stages * micro_batches)
