# misconception: beyond-last
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
        warm_up = stages - 1 - s
        row = [f'F{i}' for i in range(min(warm_up, micro_batches))]
        for i in range(warm_up, micro_batches):
            row += [f'F{i}', f'B{i - warm_up}']
        rows.append(row + [f'B{i}' for i in range(micro_batches - warm_up, micro_batches)])
    return rows
