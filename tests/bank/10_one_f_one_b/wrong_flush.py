# misconception: flush
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
    row = []
    for start in range(0, micro_batches, stages):
        group = range(start, min(start + stages, micro_batches))
        row += [f'F{i}' for i in group]
        row += [f'B{i}' for i in group]
    return [row for _ in range(stages)]
