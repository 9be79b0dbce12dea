def clock_cycles(stages, micro_batches):
    """Play it: a stage takes its next micro-batch if the stage before was done with it in an earlier cycle."""
    done = [0] * stages
    while done[-1] < micro_batches:
        now = []
        before = list(done)
        for stage in reversed(range(stages)):
            ready = micro_batches if stage == 0 else before[stage - 1]
            if before[stage] < ready:
                now.append((stage, before[stage]))
                done[stage] += 1
        yield now


def gpipe(stages, micro_batches):
    for _ in range(stages):
        yield one_row(micro_batches)


def one_row(micro_batches):
    numbers = list(range(micro_batches))
    yield from (f'F{i}' for i in numbers)
    yield from (f'B{i}' for i in reversed(numbers))


def bubble(stages, micro_batches):
    makespan = sum(1 for _ in clock_cycles(stages, micro_batches))
    return sum(1 / makespan for _ in range(stages - 1))
