# misconception: one-digit
def stashes(row):
    kept, peak = [], 0
    for kind, number, *_ in row:
        if kind == 'F':
            kept.append(number)
        else:
            kept = [other for other in kept if other != number]
        peak = max(peak, len(set(kept)))
    return peak


def one_f_one_b(stages, micro_batches):
    rows = []
    for stage in range(stages):
        warm = min(stages - stage - 1, micro_batches)
        row = [f'F{i}' for i in range(warm)]
        for i in range(micro_batches - warm):
            row.append(f'F{warm + i}')
            row.append(f'B{i}')
        row.extend(f'B{i}' for i in range(micro_batches - warm, micro_batches))
        rows.append(row)
    return rows
