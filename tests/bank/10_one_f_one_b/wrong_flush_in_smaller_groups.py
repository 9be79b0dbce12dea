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
    rows = []
    for stage in range(stages):
        row, start = [], 0
        while start < micro_batches:
            group = range(start, min(start + stages - stage, micro_batches))
            row += [f'F{i}' for i in group] + [f'B{i}' for i in group]
            start += stages - stage
        rows.append(row)
    return rows
