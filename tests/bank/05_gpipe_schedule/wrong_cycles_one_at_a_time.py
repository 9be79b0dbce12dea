# misconception: one-at-a-time
def clock_cycles(stages, micro_batches):
    cycles = []
    for i in range(micro_batches):
        for s in range(stages):
            cycles.append([(s, i)])
    return cycles


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
