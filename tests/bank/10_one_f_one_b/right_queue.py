from collections import deque
from itertools import accumulate


def stashes(row):
    return max(accumulate({'F': 1, 'B': -1}[operation[0]] for operation in row))


def one_f_one_b(stages, micro_batches):
    return tuple(tuple(row_of(stages - s, micro_batches)) for s in range(stages))


def row_of(room, micro_batches):
    waiting = deque()
    for i in range(micro_batches):
        yield f'F{i}'
        waiting.append(i)
        if len(waiting) == room:
            yield f'B{waiting.popleft()}'
    while waiting:
        yield f'B{waiting.popleft()}'
