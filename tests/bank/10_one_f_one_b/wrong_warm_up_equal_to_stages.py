# misconception: warm-up-equal
def stashes(row):
    kept, most = set(), 0
    for operation in row:
        if operation[0] == 'F':
            kept.add(operation[1:])
        else:
            kept.remove(operation[1:])
        most = max(most, len(kept))
    return most


def one_f_one_b(stages, micro_batches):
    rows = []
    for s in range(stages):
        warm_up = min(stages, micro_batches)
        row = [f'F{i}' for i in range(warm_up)]
        for k in range(micro_batches - warm_up):
            row.append(f'F{warm_up + k}')
            row.append(f'B{k}')
        for k in range(micro_batches - warm_up, micro_batches):
            row.append(f'B{k}')
        rows.append(row)
    return rows
