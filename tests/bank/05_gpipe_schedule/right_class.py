from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Pipe:
    n: int
    m: int

    def ends(self):
        return self.n + self.m - 1

    def active(self, t):
        first = max(0, t - self.m + 1)
        last = min(self.n - 1, t)
        return {(s, t - s) for s in range(first, last + 1)}

    def row(self):
        order = [*range(self.m)]
        return [f'F{i}' for i in order] + [f'B{i}' for i in sorted(order, key=lambda i: (i % 2, i))]


def clock_cycles(stages, micro_batches):
    pipe = Pipe(stages, micro_batches)
    return [pipe.active(t) for t in range(pipe.ends())]


def gpipe(stages, micro_batches):
    return (tuple(Pipe(stages, micro_batches).row()),) * stages


def bubble(stages, micro_batches):
    return Fraction(stages - 1, Pipe(stages, micro_batches).ends())
