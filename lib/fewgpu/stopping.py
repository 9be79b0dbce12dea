"""Stop in time: a run that is asked to end saves a checkpoint first, on all ranks after the same mini-batch.

    stopping = Stopping()
    for step, (x, y) in enumerate(batches, 1):
        ...
        if stopping.asked():                                # all ranks call it, and get the same answer
            checkpoints.save(step, training_state(model, optimizer))
            break

Slurm asks by TERM when a job is cancelled or preempted, and by USR1 some time before its time limit, where the job says
`#SBATCH --signal=B:USR1@60`. A signal reaches the ranks at different moments: one may be in step 7 when another has
begun step 8. So after every step they tell each other what they have noted, a number a rank (2: TERM):

    rank 0   step 7 ── 0 ┐          step 8 ─── 0 ┐
    rank 1   step 7 ── 0 ┴ 0: go on step 8 ─!─ 2 ┴ 2: all stop after step 8
"""

import signal
from types import FrameType

#: What asks a run to stop. Where both come the last of them counts: TERM, after which nothing goes on. (Numbers of
#: signals would not do: that of TERM is the larger one on Linux, and the smaller one on macOS.)
SIGNALS = tuple(getattr(signal, name) for name in ('SIGUSR1', 'SIGTERM') if hasattr(signal, name))

_noted = 0   # the place in SIGNALS, from 1, of what has come to this process; 0 for nothing
_before: dict[signal.Signals, object] = {}   # the handlers that are to come back


def listen() -> None:
    """From now on these signals do not end the process: they are noted for a `Stopping`, which may be made later (a
    process that is still importing torch should not be ended by one).

    Raises ValueError, as Python does, in another thread than the main one.
    """
    for number in SIGNALS:
        before = signal.signal(number, _note)
        _before.setdefault(number, before)


def _note(number: int, frame: FrameType | None) -> None:
    global _noted
    _noted = max(_noted, SIGNALS.index(number) + 1)


class Stopping:
    """Notes what asks this run to stop; `asked()` lets all ranks agree on it.

    It takes the process's handlers of TERM and USR1, and `close` gives them back. On ranks of torch.distributed all
    make it, and `time_limit` (seconds) bounds their waiting for each other.
    """

    def __init__(self, *, time_limit: float = 60.0) -> None:
        listen()
        from fewgpu.group import Group, is_distributed   # which import torch, and a signal may come meanwhile
        self._group = Group(time_limit=time_limit) if is_distributed(None, time_limit) else None

    def asked(self) -> signal.Signals | None:
        """The signal by which any rank has been asked to stop, or None. All ranks call it after the same steps.

        Raises PeerError if a rank is gone or late.
        """
        noted = _noted
        if self._group:
            from fewgpu.alike import of_all
            noted = max(told for told, in of_all([noted], self._group))
        return SIGNALS[noted - 1] if noted else None

    def close(self) -> None:
        """Forget what was noted; the signals do again what they did before."""
        global _noted
        _noted = 0
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()

    def __enter__(self) -> 'Stopping':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
