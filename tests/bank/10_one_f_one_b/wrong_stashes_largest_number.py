# misconception: largest-number
def stashes(row):
    return 1 + max(int(operation[1:]) for operation in row)


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
