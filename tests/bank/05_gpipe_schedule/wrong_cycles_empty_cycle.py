# misconception: empty-cycle
def clock_cycles(stages, micro_batches):
    out = []
    for t in range(stages + micro_batches):
        now = []
        for s in range(stages):
            if t - s >= 0 and t - s < micro_batches:
                now.append((s, t - s))
        out.append(now)
    return out


def gpipe(stages, micro_batches):
    row = ['F' + str(i) for i in range(micro_batches)]
    row += ['B' + str(i) for i in range(micro_batches - 1, -1, -1)]
    return [list(row) for _ in range(stages)]


def bubble(stages, micro_batches):
    total = stages + micro_batches - 1
    return (total - micro_batches) / total
