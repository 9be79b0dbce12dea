# misconception: no-warm-up
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
    for i in range(micro_batches):
        row += [f'F{i}', f'B{i}']
    return [row for _ in range(stages)]
