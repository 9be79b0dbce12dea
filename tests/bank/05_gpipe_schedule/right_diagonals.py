def clock_cycles(stages, micro_batches):
    cycles = [[] for _ in range(stages + micro_batches - 1)]
    for i in range(micro_batches):
        for s in range(stages):
            cycles[s + i].append((s, i))
    return cycles


def gpipe(stages, micro_batches):
    result = []
    for _ in range(stages):
        row = []
        for i in range(micro_batches):
            row.append('F%d' % i)
        for i in range(micro_batches):
            row.append('B%d' % i)
        result.append(row)
    return result


def bubble(stages, micro_batches):
    cycles = clock_cycles(stages, micro_batches)
    busy = sum(len(cycle) for cycle in cycles)
    return 1 - busy / (len(cycles) * stages)
