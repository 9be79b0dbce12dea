# misconception: never-frees
def stashes(row):
    count = 0
    for op in row:
        if op.startswith('F'):
            count += 1
    return count


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
