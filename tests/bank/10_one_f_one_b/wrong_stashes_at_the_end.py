# misconception: at-the-end
def stashes(row):
    kept = 0
    for op in row:
        if op[0] == 'F':
            kept += 1
        else:
            kept -= 1
    return kept


def one_f_one_b(stages, micro_batches):
    rows = []
    for s in range(stages):
        forward = backward = 0
        row = []
        while backward < micro_batches:
            if forward < micro_batches and forward - backward < stages - s:
                row.append(f'F{forward}')
                forward += 1
            else:
                row.append(f'B{backward}')
                backward += 1
        rows.append(row)
    return rows
