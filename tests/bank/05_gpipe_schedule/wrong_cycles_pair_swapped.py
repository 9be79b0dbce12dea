# misconception: pair-swapped
def clock_cycles(stages, micro_batches):
    cycles = [[] for _ in range(stages + micro_batches - 1)]
    for s in range(stages):
        for i in range(micro_batches):
            cycles[s + i].append((i, s))
    return cycles


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
