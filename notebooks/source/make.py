"""Make the notebooks from their sources: `python notebooks/source/make.py`.

A source is Python, with text and code in cells (jupytext's percent format): it can be read, reviewed
and compared line by line. The notebooks hold no outputs: every figure in a lesson is measured by
the machine that it is read on.
"""

import hashlib
from pathlib import Path

import jupytext

SOURCES = Path(__file__).resolve().parent
KERNEL = {'display_name': 'Python 3 (ipykernel)', 'language': 'python', 'name': 'python3'}


def sources() -> list[Path]:
    """The lessons' sources, in order."""
    return sorted(set(SOURCES.glob('*.py')) - {Path(__file__).resolve()})


def made_from(source: str) -> str:
    """The text of the notebook that is made from the text of a source; equal texts give equal ones."""
    notebook = jupytext.reads(source, fmt='py:percent')
    notebook.metadata.clear()
    notebook.metadata.update(kernelspec=KERNEL, language_info={'name': 'python'})
    names = set()
    for number, cell in enumerate(notebook.cells):
        # Named after its text: a new cell does not rename the others.
        name = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        cell.id = name if name not in names else f'{name}-{number}'
        names.add(cell.id)
    return jupytext.writes(notebook, fmt='ipynb') + '\n'


if __name__ == '__main__':
    for source in sources():
        path = SOURCES.parent / f'{source.stem}.ipynb'
        path.write_text(made_from(source.read_text(encoding='utf-8')), encoding='utf-8')
        print(path)
