# misconception: one-row
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
    warm_up = min(stages - 1, micro_batches)
    row = [f'F{i}' for i in range(warm_up)]
    for i in range(warm_up, micro_batches):
        row += [f'F{i}', f'B{i - warm_up}']
    return row + [f'B{i}' for i in range(micro_batches - warm_up, micro_batches)]
