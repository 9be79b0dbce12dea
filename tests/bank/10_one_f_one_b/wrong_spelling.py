# misconception: spelling
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
    for stage in range(stages):
        warm = min(stages - stage - 1, micro_batches)
        row = [('F', i) for i in range(warm)]
        for i in range(micro_batches - warm):
            row.append(('F', warm + i))
            row.append(('B', i))
        row.extend(('B', i) for i in range(micro_batches - warm, micro_batches))
        rows.append(row)
    return rows
