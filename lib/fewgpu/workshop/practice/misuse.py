"""Ways for ranks not to come together, and the exception that says so. Imports no torch."""

MISUSES = {
    'deadlock': 'all ranks wait, and none of them can go on',
    'too-slow': 'a rank does not come to an end',
    'talks-to-itself': 'a rank sends a message to itself, or waits for one from itself',
    'no-such-rank': 'a rank names another that is not there: the numbers go round, by % size',
    'never-received': 'a message is sent that nobody receives: every send needs a receive at the other end',
    'never-waited': 'a reduction is started, and nobody waits for its end: what is in the tensor is not the sum yet',
    'different-reductions': 'the ranks do not start the same reductions in the same order: the first of one rank goes '
                            'with the first of every other, whatever is in it',
    'changed-in-flight': 'a tensor is changed while its reduction goes on: until wait() it belongs to the network',
}
"""By a stable id, in one sentence."""


class Misuse(RuntimeError):
    """One of `MISUSES`; `detail` is the sentence about this case."""

    def __init__(self, misconception: str, detail: str) -> None:
        sentence = MISUSES[misconception]
        super().__init__(f'{sentence[:1].upper()}{sentence[1:]}. {detail}')
        self.misconception, self.detail = misconception, detail


class Deadlock(Misuse):
    """All ranks that have not ended wait; `sent` is how many messages there were."""

    def __init__(self, waits: dict[int, str], ended: list[int], sent: int) -> None:
        told = '; '.join(f'rank {rank} waits for {what}' for rank, what in waits.items())
        told += ''.join(f'; rank {rank} has ended' for rank in ended)
        super().__init__('deadlock', f'{told[:1].upper()}{told[1:]}.')
        self.sent = sent
