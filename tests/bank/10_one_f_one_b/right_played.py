import torch


def stashes(row):
    steps = torch.tensor([1 if op.startswith('F') else -1 for op in row])
    return steps.cumsum(0).max()


def one_f_one_b(stages, micro_batches):
    """Every stage runs the oldest backward that it can run, and a forward otherwise, if it has room for it."""
    f, b = [0] * stages, [0] * stages
    rows = [[] for _ in range(stages)]
    free = [0] * stages
    ended = {}
    now = 0
    while min(b) < micro_batches:
        for s in range(stages):
            if free[s] > now:
                continue
            behind = ended.get(('B', s + 1, b[s]), 10**9) if s < stages - 1 else 0
            before = ended.get(('F', s - 1, f[s]), 10**9) if s > 0 else 0
            if b[s] < f[s] and behind <= now:
                free[s] = ended['B', s, b[s]] = now + 2
                rows[s].append(f'B{b[s]}')
                b[s] += 1
            elif f[s] < micro_batches and before <= now and f[s] - b[s] < stages - s:
                free[s] = ended['F', s, f[s]] = now + 1
                rows[s].append(f'F{f[s]}')
                f[s] += 1
        now += 1
    return rows
