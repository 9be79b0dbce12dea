"""Why a job of several ranks failed: who fails leaves word in the job's folder, and one of them is the cause.

    python -m fewgpu.workshop.failed FOLDER STATUS

prints who failed first of all that did not fail because of another rank, and exits with that rank's status. When there
is no such word, and ranks tell that they have lost another one, that one's node is gone: exit status 0, and whoever
asked may start the job again. Without any word it exits with STATUS.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

_ENDING = '.failed'


def node_here() -> str:
    """The name of this node in its Slurm."""
    return os.environ.get('SLURMD_NODENAME') or 'this machine'


@dataclass
class Failed:
    """A rank that failed: where, how (its exit status, as a shell has it) and why (sentences)."""

    rank: int
    node: str
    status: int
    why: str
    is_of_another: bool = False   # it failed because another rank did

    @classmethod
    def by(cls, error: BaseException, rank: int) -> Self:
        """This rank, by an error of its own or by news of another rank."""
        why = [f'{type(error).__name__}: {error}', *getattr(error, '__notes__', [])]
        is_of_another = getattr(error, 'is_of_another_rank', False) and not getattr(error, 'came_late', False)
        return cls(rank, node_here(), 1, '\n'.join(why), is_of_another)

    def leave(self, folder: Path) -> None:
        """Write it down for the job, unless this rank has left word before."""
        file = folder / f'rank-{self.rank}{_ENDING}'
        if not file.exists():
            unfinished = file.with_suffix('.part')
            unfinished.write_text(json.dumps(asdict(self)), encoding='utf-8')
            os.replace(unfinished, file)


def all_of(folder: Path) -> list[Failed]:
    """The first comes first."""
    files = [folder / name for name in os.listdir(folder) if name.endswith(_ENDING)]
    files.sort(key=lambda file: file.stat().st_mtime_ns)
    return [Failed(**json.loads(file.read_text(encoding='utf-8'))) for file in files]


def forget(folder: Path) -> None:
    """Those of a run before, which goes on now."""
    for name in os.listdir(folder):
        if name.endswith(_ENDING):
            (folder / name).unlink(missing_ok=True)


def main(folder: Path, status: int) -> int:
    """Print the cause; the exit status of the job, 0 if a node was lost."""
    found = all_of(folder) if folder.is_dir() else []
    causes = [one for one in found if not one.is_of_another]
    if causes:
        _show(causes[0], folder, 'failed')
        return causes[0].status
    if found:
        _show(found[0], folder, 'lost another rank, which left no word: its node is gone, or it was killed')
        return 0
    return status


def _show(one: Failed, folder: Path, how: str) -> None:
    why: Sequence[str] = one.why.splitlines()
    print('\n'.join([f'Rank {one.rank} on {one.node} {how}:', *(f'    {line}' for line in why),
                     f'All that it printed: {folder / f"rank-{one.rank}.log"}']), flush=True)


if __name__ == '__main__':
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
