"""The runner: `./workshop.py COMMAND` hands over to `python -m fewgpu.workshop COMMAND`. One module a command.

In a notebook, `from fewgpu.workshop import check` and `check(5)` grade exercise 05.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewgpu.workshop.runner.cell import Checked


def repository() -> Path:
    """The clone that this package is installed from: the folder with exercises, notebooks and tests.

    Raises FileNotFoundError, with the remedy, where fewgpu was installed without its repository.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / 'workshop.py').is_file():
        raise FileNotFoundError(
            f'{root} is not a clone of the kit: the exercises, notebooks and tests are not part of the installed '
            'package. Clone the repository and run ./workshop.py there, or install it with `pip install -e .`.'
        )
    return root


def check(number: int | str, file: str | Path | None = None, *, seed: int | None = None) -> 'Checked':
    """Check an exercise in a notebook: `check(5)`. See `fewgpu.workshop.runner.cell.check`."""
    from fewgpu.workshop.runner import cell
    return cell.check(number, file, seed=seed)
