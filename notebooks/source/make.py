"""Make the notebooks from their sources: `python notebooks/source/make.py`.

A source is Python, with text and code in cells (jupytext's percent format): it can be read, reviewed
and compared line by line. What a notebook stores as output is what its code gave when the notebook
was made: where the code has changed it is run again, where only the text has, the outputs are kept.

    make.py                      make those whose source has changed
    make.py 05_gpipe             this one, and run it in any case
    make.py --all                run all of them: do so on a quiet machine

Tags of a cell, as in `# %% tags=["measured"]`, say what becomes of its output:

    (none)      the same on every machine: stored, and compared whenever the tests run the notebook
    measured    another one in every run: stored as an example, and marked as one
    yours       depends on what the learner has done: not stored

What answers a prediction (the cell of `my_guess` and those below it, until the next text) is stored folded.
"""

import argparse
import base64
import hashlib
import io
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

from fewgpu.workshop.runner import whole

SOURCES = Path(__file__).resolve().parent
LIBRARY = SOURCES.parents[1] / 'lib/fewgpu'
KERNEL = {'display_name': 'fewgpu', 'language': 'python', 'name': 'python3'}
EXAMPLE = 'An example, measured on two cores without a GPU. Run the cell to see what your machine does.\n'
NOT_COMPARED = {'measured', 'yours'}
# Grading solutions, and without GPUs, so that every maker gets the same.
SURROUNDINGS = {'FEWGPU_CHECK': 'solutions', 'CUDA_VISIBLE_DEVICES': ''}
LIVE = 'application/vnd.jupyter.widget-view+json'   # means nothing without the kernel that made it


def sources() -> list[Path]:
    """The lessons' sources, in order."""
    return sorted(set(SOURCES.glob('*.py')) - {Path(__file__).resolve()})


def made_from(source: str, old: nbformat.NotebookNode | None = None) -> nbformat.NotebookNode:
    """The notebook that is made from the text of a source, with the outputs of an old one.

    It says in its metadata by which code and which parts of the kit they were made; `is_fresh` compares.
    """
    notebook = jupytext.reads(source, fmt='py:percent')
    notebook.metadata.clear()
    notebook.metadata.update(kernelspec=KERNEL, language_info={'name': 'python'})
    names, answers = set(), False
    for number, cell in enumerate(notebook.cells):
        # Named after its text: a new cell does not rename the others.
        name = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        cell.id = name if name not in names else f'{name}-{number}'
        names.add(cell.id)
        tags = cell.metadata.get('tags', [])
        cell.metadata.clear()
        if tags:
            cell.metadata['tags'] = tags + ['nbval-ignore-output'] * bool(NOT_COMPARED & {*tags})
        answers = cell.cell_type == 'code' and ('my_guess = ' in cell.source or answers)
        if answers:   # JupyterLab unfolds it when the cell is run, after the prediction
            cell.metadata['jupyter'] = {'outputs_hidden': True}
    if old is not None and [*_code(old)] == [*_code(notebook)]:
        for cell, before in zip(_code_cells(notebook), _code_cells(old)):
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
        notebook.metadata['fewgpu'] = old.metadata.get('fewgpu', {})
    return notebook


def is_fresh(notebook: nbformat.NotebookNode) -> bool:
    """Are its outputs those of the code that is in it, with the kit's words and pictures as they are now?"""
    return notebook.metadata.get('fewgpu') == _made_by(notebook)


def is_touched(notebook: nbformat.NotebookNode) -> bool:
    """Has somebody worked in it since it was made?"""
    return notebook.metadata.get('fewgpu', {}).get('outputs_of') != _hash(notebook)


def run(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run it in a folder and store the outputs. Raises RuntimeError where a cell warns: learners would ask why."""
    os.environ.update(SURROUNDINGS)
    NotebookClient(notebook, timeout=120, kernel_name='python3', resources={'metadata': {'path': str(folder)}}).execute()
    seconds = [_seconds(cell) for cell in _code_cells(notebook)]
    print(f'    {sum(seconds):.0f} s, the longest cell {max(seconds):.0f} s' + ' (too long?)' * (max(seconds) > 20))
    notebook.metadata.pop('widgets', None)
    notebook.metadata['language_info'] = {'name': 'python'}
    for cell in _code_cells(notebook):
        tags = cell.metadata.get('tags', [])
        for output in cell.outputs:
            if output.get('name') == 'stderr':
                raise RuntimeError(f'this cell writes to stderr:\n{cell.source}\n\n{output.text}')
            _reduce(output.get('data', {}))
        if 'yours' in tags:
            cell.outputs, cell.execution_count = [], None
        if 'measured' in tags and cell.outputs:
            cell.outputs.insert(0, nbformat.v4.new_output('stream', name='stdout', text=EXAMPLE))
    notebook.metadata['fewgpu'] = _made_by(notebook)


def _seconds(cell: nbformat.NotebookNode) -> float:
    """How long it ran; the note of it goes."""
    noted = cell.metadata.pop('execution')
    start, end = (datetime.fromisoformat(noted[f'iopub.{what}']) for what in ('status.busy', 'status.idle'))
    return (end - start).total_seconds()


def _reduce(data: dict) -> None:
    """Of what a cell shows, keep what can be seen without a kernel, and pictures in few colours."""
    data.pop(LIVE, None)
    if 'image/png' in data:
        picture = Image.open(io.BytesIO(base64.b64decode(data['image/png'])))
        buffer = io.BytesIO()
        picture.convert('RGB').quantize(64, dither=Image.Dither.NONE).save(buffer, 'png', optimize=True)
        data['image/png'] = base64.b64encode(buffer.getvalue()).decode()


def _code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _code(notebook: nbformat.NotebookNode) -> Iterator[tuple]:
    """All that decides about the outputs."""
    return ((cell.source, sorted(cell.metadata.get('tags', []))) for cell in _code_cells(notebook))


def _hash(notebook: nbformat.NotebookNode) -> str:
    return hashlib.sha256(repr([*_code(notebook)]).encode()).hexdigest()


def _made_by(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """The code that outputs come from: the notebook's own, and what writes and draws for all of them."""
    files = [LIBRARY / 'workshop' / f'{name}.py' for name in ('claims', 'here', 'lesson', 'measure', 'panel', 'recorded')]
    kit = hashlib.sha256(b''.join(file.read_bytes() for file in [*files, *sorted((LIBRARY / 'plot').glob('*.py'))]))
    return {'outputs_of': _hash(notebook), 'shown_by': kit.hexdigest()}


def _keep(path: Path) -> None:
    """Copy what somebody has worked in to a name that nothing has yet."""
    copy = next(copy for number in itertools.count(1)
                if not (copy := path.with_name(f'{path.name}.before-make-{number}')).exists())
    shutil.copy2(path, copy)
    print(f'{path.name} was worked in: that is kept as {copy.name}')


def main(arguments: list[str]) -> None:
    """Make what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', help='run these in any case, as in 05_gpipe')
    parser.add_argument('--all', action='store_true', help='run all of them in any case')
    args = parser.parse_args(arguments)
    chosen = [path for path in sources() if not args.names or path.stem in args.names]
    if unknown := {*args.names} - {path.stem for path in chosen}:
        parser.error(f"there is no source {', '.join(sorted(unknown))}; there are "
                     + ', '.join(path.stem for path in sources()))
    for source in chosen:
        path = SOURCES.parent / f'{source.stem}.ipynb'
        old = nbformat.read(path, as_version=4) if path.exists() else None
        if old is not None and is_touched(old):
            _keep(path)
        notebook = made_from(source.read_text(encoding='utf-8'), old)
        if args.all or args.names or not is_fresh(notebook):
            print(f'{path} (running it ...)', flush=True)
            run(notebook, SOURCES.parent)
        whole.write(path, nbformat.writes(notebook) + '\n')
        print(path)


if __name__ == '__main__':
    main(sys.argv[1:])
