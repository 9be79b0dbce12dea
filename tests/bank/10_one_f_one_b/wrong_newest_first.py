# misconception: newest-first
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
        stack, row = [], []
        for i in range(micro_batches):
            row.append(f'F{i}')
            stack.append(i)
            if len(stack) == stages - s:
                row.append(f'B{stack.pop()}')
        while stack:
            row.append(f'B{stack.pop()}')
        rows.append(row)
    return rows
