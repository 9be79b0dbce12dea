# misconception: idle-entries
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
        forward = backward = 0
        row = [''] * s
        while backward < micro_batches:
            if forward < micro_batches and forward - backward < stages - s:
                row.append(f'F{forward}')
                forward += 1
            else:
                row.append(f'B{backward}')
                backward += 1
        rows.append(row)
    return rows
