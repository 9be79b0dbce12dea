"""`./workshop.py lab` starts JupyterLab with this environment; `./workshop.py kernel` registers it elsewhere."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from fewgpu.workshop import repository
from fewgpu.workshop.run import become

KERNEL = 'fewgpu'  # what the kernel is called on a JupyterHub
# Settings of JupyterLab that come before all others. Its kernel python3, the lessons' own, is the Python that runs it,
# whatever is registered under that name; it starts without asking whether to fetch news; and a panel is
# saved with its picture, which is there when the lesson is opened another day.
SETTINGS = Path(__file__).with_name('jupyter')


def lab(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar='ARGUMENTS', help='For JupyterLab, for example --no-browser --port 8890.'),
    ] = None,
) -> None:
    """Start JupyterLab on the lessons; Ctrl-C ends it, and every notebook that still runs in it.

    Notebooks run in the kit's own environment, whatever other kernels are installed.
    """
    try:
        root, extra = repository(), environment()
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from error
    become([sys.executable, '-P', '-m', 'jupyterlab', *options(root), *(arguments or [])], extra)


def kernel() -> None:
    """Make the kit's environment a kernel of your own JupyterLab or JupyterHub, under the name fewgpu.

    `jupyter kernelspec remove fewgpu` takes it away again.
    """
    install = ['install', '--user', '--name', KERNEL, '--display-name', KERNEL]
    code = subprocess.run([sys.executable, '-P', '-m', 'ipykernel', *install], check=False).returncode
    if code == 0:
        print(f"Reload JupyterLab, open a lesson of {repository() / 'notebooks'},\n"
              f"and choose the kernel {KERNEL} (its name stands at the top right of a notebook).")
    raise typer.Exit(code)


def options(root: Path) -> list[str]:
    """JupyterLab's own options: all of the clone at `root` can be opened, and the lessons are shown first."""
    return [
        f'--ServerApp.root_dir={root}',
        '--ContentsManager.preferred_dir=notebooks',
        '--ServerApp.answer_yes=True',  # Ctrl-C stops it at once: notebooks are saved all the time
    ]


def environment() -> dict[str, str]:
    """Environment variables that let JupyterLab find its pages, and our settings of it.

    An environment that builds upon another finds the packages there, but not what lies beside them:

        <prefix>/lib/python3.x/site-packages/jupyterlab     the package
        <prefix>/share/jupyter/lab/static                   its pages
        <prefix>/etc/jupyter                                its extensions, the terminal for one

    Raises FileNotFoundError, with the remedy, if JupyterLab is not installed.
    """
    try:
        files = metadata.files('jupyterlab') or []
    except metadata.PackageNotFoundError:
        files = []
    name = 'share/jupyter/lab/static/index.html'
    pages = next((file for file in files if file.as_posix().endswith(name)), None)
    if pages is None:
        raise FileNotFoundError('JupyterLab is not installed in this environment: `python -m pip install jupyterlab`, '
                                'or `./workshop.py kernel` to use the one that you have.')
    prefix = Path(pages.locate()).resolve().parents[4]
    elsewhere = prefix != Path(sys.prefix).resolve()
    return {
        'JUPYTER_PATH': _first(SETTINGS, 'JUPYTER_PATH', [prefix / 'share/jupyter'] * elsewhere),
        'JUPYTER_CONFIG_PATH': _first(SETTINGS, 'JUPYTER_CONFIG_PATH', [prefix / 'etc/jupyter'] * elsewhere),
    } | ({'JUPYTERLAB_DIR': str(prefix / 'share/jupyter/lab')} if elsewhere else {})


def _first(folder: Path, variable: str, last: list[Path]) -> str:
    """The folders to look in: this one, then those that the user has set, then the last ones."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get(variable), *map(str, last)]))
