# misconception: transfer-cycle
def clock_cycles(stages, micro_batches):
    starts = {}
    for s in range(stages):
        for i in range(micro_batches):
            starts.setdefault(2 * s + i, []).append((s, i))
    return [starts[t] for t in sorted(starts)]


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    return (stages - 1) / (stages - 1 + micro_batches)
