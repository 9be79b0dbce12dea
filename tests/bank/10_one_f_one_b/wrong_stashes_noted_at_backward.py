# misconception: noted-at-backward
def stashes(row):
    kept = peak = 0
    for operation in row:
        if operation.startswith('F'):
            kept += 1
        else:
            peak = max(peak, kept)
            kept -= 1
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
