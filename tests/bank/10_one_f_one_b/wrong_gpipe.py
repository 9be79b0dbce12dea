# misconception: gpipe
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
    return [[f'{kind}{i}' for kind in 'FB' for i in range(micro_batches)] for _ in range(stages)]
