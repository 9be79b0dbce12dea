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
    schedule = []
    for stage in range(stages):
        first = min(stages - stage, micro_batches)
        operations = ['F' + str(i) for i in range(first)]
        for i in range(first, micro_batches):
            operations.append('B' + str(i - first))
            operations.append('F' + str(i))
        operations.extend('B' + str(i) for i in range(micro_batches - first, micro_batches))
        schedule.append(operations)
    return schedule
