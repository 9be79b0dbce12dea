"""The runner: `./workshop.py COMMAND` hands over to `python -m fewgpu.workshop COMMAND`. One module a command."""

from pathlib import Path


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
