"""What running the lessons as tests needs: solutions are graded, and every picture is looked at.

A plugin of pytest: `./workshop.py test --all` loads it, `pytest -p tests.lessons --nbval notebooks` does the same.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pictures import noted

ROOT = Path(__file__).resolve().parents[1]
STARTUP = """import sys
from pathlib import Path
sys.path.append({root!r})
from tests.pictures import watch
watch(Path({folder!r}))
del sys, Path, watch
"""
CHANGED = 'somebody has worked in it: `git checkout {path}` brings back the one that comes with the kit (and takes the work away)'


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Before a notebook's first cell its kernel is started, in these surroundings."""
    if item.path.suffix != '.ipynb':
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in surroundings(item.config).items():
            patch.setenv(name, value)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A picture that cannot be read fails the cell that shows it."""
    if item.path.suffix != '.ipynb':
        return (yield)
    noted(folder(item.config, 'pictures'))   # what a cell left that failed by itself
    try:
        yield
    except Exception:
        if changed(item.path):
            item.add_report_section('call', 'this lesson', CHANGED.format(path=item.path))
        raise
    if found := noted(folder(item.config, 'pictures')):
        pytest.fail('a picture of this cell is hard to read:\n' + '\n\n'.join(found), pytrace=False)


def changed(path: Path) -> bool:
    """Does the notebook differ from what git has?"""
    return subprocess.run(['git', 'diff', '--quiet', '--', path.name], cwd=path.parent, check=False).returncode == 1


def surroundings(config: pytest.Config) -> dict[str, str]:
    """Of kernels. IPython's own folder holds what they run when they start."""
    ipython = folder(config, 'ipython')
    startup = ipython / 'profile_default/startup/pictures.py'
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(STARTUP.format(root=str(ROOT), folder=str(folder(config, 'pictures'))), encoding='utf-8')
    return {'FEWGPU_CHECK': 'solutions', 'IPYTHONDIR': str(ipython)}


def folder(config: pytest.Config, name: str) -> Path:
    """A folder of this run of pytest."""
    path = config._tmp_path_factory.getbasetemp() / f'notebooks-{name}'
    path.mkdir(exist_ok=True)
    return path
