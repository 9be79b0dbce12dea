# misconception: one-more
def stashes(row):
    kept = most = 1
    for op in row:
        kept += 1 if op[0] == 'F' else -1
        most = max(most, kept)
    return most


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
