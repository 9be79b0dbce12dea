"""The kit itself: its packages, its exercises, its data, and what you have done so far."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fewgpu.workshop import repository
from fewgpu.workshop.exercise import all_exercises
from fewgpu.workshop.runner.finding import BAD, OK, WARN, Finding
from fewgpu.workshop.runner.progress import Progress
from fewgpu.workshop.runner.results import version_of

BY_THE_WAY = {'torchgpipe', 'pytest', 'hypothesis', 'nbval', 'jupytext'}   # nothing that learners do fails without


def clone() -> Iterator[Finding]:
    """Which clone is this, and is it the one that you stand in?"""
    root = repository()
    here = next((folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / 'workshop.py').is_file()), root)
    says = f'fewgpu {version_of("fewgpu") or "(not installed)"} in {root}'
    if here.resolve() != root:
        yield Finding(WARN, 'kit', f'{says}, and you are in {here}',
                      f'Use the ./workshop.py of {here}, or go to {root}.')
    else:
        yield Finding(OK, 'kit', says)


def packages() -> Iterator[Finding]:
    """Those of requirements.txt: which are missing, and which have another version than was tested."""
    text = (repository() / 'requirements.txt').read_text(encoding='utf-8')
    pins = dict(re.findall(r'^([\w-]+)==([\w.]+)', text, re.MULTILINE))
    versions = {name: version_of(name) for name in pins}
    missing = [name for name, version in versions.items() if version is None]
    other = [f'{name} {version}' for name, version in versions.items()
             if version and version.split('+')[0] != pins[name]]
    install = f'{sys.executable} -m pip install ' + ' '.join(f'{name}=={pins[name]}' for name in missing)
    if missing:
        harmless = BY_THE_WAY.issuperset(missing)
        yield Finding(WARN if harmless else BAD, 'packages', f'missing: {", ".join(missing)}', install)
    says = f'{len(pins) - len(missing)} of {len(pins)}'
    if other:
        yield Finding(OK, 'packages', f'{says}; other versions than those that are pinned: {", ".join(other)}')
    elif not missing:
        yield Finding(OK, 'packages', f'all {len(pins)}, in the versions that are pinned')


def exercises() -> Iterator[Finding]:
    """Is every exercise there, with its grader, and can what was done so far be read?"""
    all_of_them = all_exercises()
    missing = [exercise for exercise in all_of_them if not exercise.file.is_file()]
    graders = Path(__file__).parents[1] / 'graders'
    without = [f'{exercise.number:02}' for exercise in all_of_them if not (graders / f'{exercise.name}.py').is_file()]
    for exercise in missing:
        yield Finding(WARN, 'exercises', f'exercises/{exercise.file.name} is not there',
                      f'./workshop.py reset {exercise.number:02}')
    if without:
        yield Finding(BAD, 'exercises', f'no grader for {", ".join(without)}',
                      'git status shows what is missing in this clone.')
    progress = Progress.load(repository())
    if progress.note:
        yield Finding(WARN, 'exercises', progress.note)
    done = sum(progress.of(exercise.name).done for exercise in all_of_them)
    if not missing and not without:
        yield Finding(OK, 'exercises', f'all {len(all_of_them)} are there; {done} are done')


def data() -> Iterator[Finding]:
    """MNIST, unpacked and compared with what was published."""
    from fewgpu import data as mnist

    try:
        sizes = [len(mnist.load(split)) for split in ('train', 'test')]
    except (OSError, ValueError) as error:
        yield Finding(BAD, 'MNIST', str(error), f'git -C {repository()} checkout -- lib/fewgpu/mnist')
    else:
        yield Finding(OK, 'MNIST', f'{sizes[0]:,} and {sizes[1]:,} images, whole')


def terminal() -> Iterator[Finding]:
    """Can it show the pictures of the exercises?"""
    real = sys.__stdout__   # sys.stdout stands in for it while something moves on the screen
    if real is None or not real.isatty():
        return
    encoding, width = real.encoding or 'ascii', os.get_terminal_size(real.fileno()).columns
    if 'utf' not in encoding.lower():
        yield Finding(WARN, 'terminal', f'writes {encoding}: some characters of pictures will be missing',
                      'export PYTHONIOENCODING=utf-8   (Windows: set PYTHONUTF8=1)')
    elif width < 80:
        yield Finding(WARN, 'terminal', f'{width} characters wide', 'Make it 80 wide or wider: pictures need that.')
    else:
        yield Finding(OK, 'terminal', f'{width} characters wide, {encoding}')
