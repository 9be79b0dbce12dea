"""What is behind copies that a forward with long skips need not make, for the grader of exercise 12."""

from collections import Counter

from fewgpu.workshop.graders.skipping import CPU, ROWS, Case, Ran, through


def told(case: Case, move: tuple[int, int, tuple[int, ...]]) -> str:
    """A copy as a line: from where, to where, and what."""
    source, destination = ('CPU' if each == CPU else f'cuda:{each}' for each in move[:2])
    made = case.widths.index(move[2][-1]) if move[2][-1] in case.widths else 0
    return f'{source:<6} -> {destination:<6}  {"what layer " + str(made - 1) + " gives" if made else "the input"}'


def culprit(case: Case, ran: Ran, more: Counter) -> str:
    """The misconception behind `more` copies than need be; '' if it is no known one."""
    if ran.device != case.placement[-1] or any(shape == (ROWS, case.widths[-1]) for *_, shape in more):
        return 'output-moved'
    if any(destination == CPU for _, destination, _ in more):
        return 'over-cpu'
    for name, saver, _ in case.skips:
        shape = (ROWS, case.widths[saver + 1])
        of_skip = Counter(move[:2] for move in ran.moves if move[2] == shape)   # and of x, behind the layer that saves
        if all(move[2] != shape for move in more):
            continue
        if max(of_skip.values()) > (2 if case.placement[saver] != case.placement[saver + 1] else 1):
            return 'twice'
        route = Counter((here, there) for what, here, there in through(case) if what == name)
        return 'detour' if of_skip - route - route else 'still-through'
    return ''
